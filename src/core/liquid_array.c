/* core/liquid_array.c: the filters on arrays. What is no array is taken as an array of one. */
#include <math.h>

#include "core/liquid_impl.h"

/* ---- sorting ---- */

/* An element, what it is sorted by, and where it was: equal ones keep their order. */
struct sortable {
    struct lv item, key;
    size_t index;
};
typedef int (*compare_func)(struct lq *q, const struct sortable *a, const struct sortable *b);

/* Merge sort, from the bottom up: stable, and never worse than n log n. */
static void merge_sort(struct lq *q, struct sortable *items, struct sortable *other, size_t count,
                       compare_func compare) {
    struct sortable *from = items;
    struct sortable *to = other;
    for (size_t width = 1; width < count; width *= 2) {
        if (!lq_work(q, count * sizeof *from)) return;
        for (size_t low = 0; low < count; low += 2 * width) {
            size_t mid = low + width < count ? low + width : count;
            size_t high = low + 2 * width < count ? low + 2 * width : count;
            size_t a = low;
            size_t b = mid;
            for (size_t i = low; i < high; i++) {
                bool left = a < mid && (b >= high || compare(q, &from[a], &from[b]) <= 0);
                to[i] = from[left ? a++ : b++];
            }
        }
        struct sortable *swap = from;
        from = to;
        to = swap;
    }
    if (from != items) memcpy(items, from, count * sizeof *items);
}

static int compare_nil(struct lv a, struct lv b) { /* nil is last; 2: neither is nil */
    if (lv_is_nil(a)) return lv_is_nil(b) ? 0 : 1;
    return lv_is_nil(b) ? -1 : 2;
}

static int compare_plain(struct lq *q, const struct sortable *a, const struct sortable *b) {
    int order = compare_nil(a->key, b->key);
    if (order != 2) return order;
    order = lv_compare(q, a->key, b->key);
    return order == 2 ? 0 : order;
}

/* The keys are lower-case text already. */
static int compare_natural(struct lq *q, const struct sortable *a, const struct sortable *b) {
    int order = compare_nil(a->key, b->key);
    if (order != 2) return order;
    if (!lq_work(q, a->key.text.len)) return 0;
    return str_cmp(a->key.text, b->key.text);
}

static struct sortable *sortables(struct lq *q, const struct lv_list *list,
                                  struct sortable **other) {
    size_t size = list->count * sizeof(struct sortable);
    struct sortable *made = lq_memory(q, size);
    *other = lq_memory(q, size);
    if (made == NULL || *other == NULL) return NULL;
    for (size_t i = 0; i < list->count; i++)
        made[i] = (struct sortable){.item = list->items[i], .key = list->items[i], .index = i};
    return made;
}

static struct lv sort(struct lq *q, struct lv v, const struct lv *args, bool natural) {
    const struct lv_list *list = lv_to_list(q, v);
    struct sortable *other;
    struct sortable *all = sortables(q, list, &other);
    struct lv *items;
    struct lv made = lv_list_of(q, &items, list->count);
    str property = lv_is_given(args[0]) ? lv_to_text(q, args[0]) : STR_NONE;
    if (all == NULL || other == NULL || q->st != ST_OK) return LV_NOTHING;
    for (size_t i = 0; i < list->count && q->st == ST_OK; i++) {
        if (property.len > 0) all[i].key = lq_dotted(q, all[i].item, property);
        if (natural && !lv_is_nil(all[i].key)) {
            all[i].key = lv_string(lq_lower(q, lv_to_js_text(q, all[i].key)));
        }
    }
    merge_sort(q, all, other, list->count, natural ? compare_natural : compare_plain);
    for (size_t i = 0; i < list->count; i++)
        items[i] = all[i].item;
    return made;
}

static struct lv f_sort(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    return sort(q, v, args, false);
}

static struct lv f_sort_natural(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    return sort(q, v, args, true);
}

/* ---- unique elements ---- */

static const void *address_of(struct lv v) {
    if (v.kind == LV_LIST) return v.list;
    return v.kind == LV_LOOP ? (const void *)v.loop : v.json;
}

/* Some order in which only equal values are equal: arrays and objects by where they are. */
static int compare_identity(struct lq *q, const struct sortable *a, const struct sortable *b) {
    if (a->key.kind != b->key.kind) return a->key.kind < b->key.kind ? -1 : 1;
    switch (a->key.kind) {
    case LV_BOOL:
        return (int)a->key.flag - (int)b->key.flag;
    case LV_NUMBER: {
        bool a_nan = isnan(a->key.num);
        bool b_nan = isnan(b->key.num);
        if (a_nan || b_nan) return (int)a_nan - (int)b_nan;
        if (a->key.num != b->key.num) return a->key.num < b->key.num ? -1 : 1;
        /* Whole numbers that a double cannot tell apart. */
        return lv_equals(q, a->key, b->key) ? 0 : str_cmp(a->key.text, b->key.text);
    }
    case LV_STRING:
        return lq_work(q, a->key.text.len) ? str_cmp(a->key.text, b->key.text) : 0;
    case LV_JSON_ARRAY:
    case LV_LIST:
    case LV_OBJECT:
    case LV_LOOP: {
        uintptr_t x = (uintptr_t)address_of(a->key);
        uintptr_t y = (uintptr_t)address_of(b->key);
        return (x > y) - (x < y);
    }
    case LV_UNDEFINED:
    case LV_NULL:
    case LV_NIL:
    case LV_EMPTY:
    case LV_BLANK:
        break;
    }
    return 0;
}

static struct lv kept_items(struct lq *q, const struct lv_list *list, const bool *keep) {
    struct lv *items;
    size_t n = 0;
    size_t at = 0;
    for (size_t i = 0; i < list->count; i++)
        n += keep[i];
    struct lv made = lv_list_of(q, &items, n);
    if (made.kind != LV_LIST) return made;
    for (size_t i = 0; i < list->count; i++) {
        if (keep[i]) items[at++] = list->items[i];
    }
    return made;
}

static struct lv f_uniq(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    const struct lv_list *list = lv_to_list(q, v);
    struct sortable *other;
    struct sortable *all = sortables(q, list, &other);
    bool *keep = lq_memory(q, list->count);
    if (all == NULL || other == NULL || keep == NULL) return LV_NOTHING;
    merge_sort(q, all, other, list->count, compare_identity);
    for (size_t i = 0; i < list->count; i++)
        keep[all[i].index] = i == 0 || compare_identity(q, &all[i - 1], &all[i]) != 0;
    return kept_items(q, list, keep);
}

/* ---- choosing ---- */

static bool matches(struct lq *q, struct lv item, str property, struct lv wanted) {
    struct lv value = lq_dotted(q, item, property);
    return wanted.kind == LV_UNDEFINED ? lv_truthy(value) : lv_equals(q, value, wanted);
}

static struct lv choose(struct lq *q, struct lv v, const struct lv *args, bool wanted) {
    const struct lv_list *list = lv_to_list(q, v);
    str property = lv_to_text(q, args[0]);
    bool *keep = lq_memory(q, list->count);
    if (keep == NULL) return LV_NOTHING;
    for (size_t i = 0; i < list->count && q->st == ST_OK; i++)
        keep[i] = matches(q, list->items[i], property, args[1]) == wanted;
    return kept_items(q, list, keep);
}

static struct lv f_where(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    return choose(q, v, args, true);
}

static struct lv f_reject(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    return choose(q, v, args, false);
}

static struct lv f_find(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    const struct lv_list *list = lv_to_list(q, v);
    str property = lv_to_text(q, args[0]);
    for (size_t i = 0; i < list->count && q->st == ST_OK; i++) {
        if (matches(q, list->items[i], property, args[1])) return list->items[i];
    }
    return LV_NOTHING;
}

static struct lv f_compact(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    const struct lv_list *list = lv_to_list(q, v);
    bool *keep = lq_memory(q, list->count);
    if (keep == NULL) return LV_NOTHING;
    for (size_t i = 0; i < list->count; i++)
        keep[i] = !lv_is_nil(list->items[i]);
    return kept_items(q, list, keep);
}

/* ---- the others ---- */

static struct lv f_map(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    const struct lv_list *list = lv_to_list(q, v);
    str property = lv_to_text(q, args[0]);
    struct lv *items;
    struct lv made = lv_list_of(q, &items, list->count);
    if (made.kind != LV_LIST) return made;
    for (size_t i = 0; i < list->count && q->st == ST_OK; i++)
        items[i] = lq_dotted(q, list->items[i], property);
    return made;
}

static struct lv f_concat(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    const struct lv_list *a = lv_to_list(q, v);
    const struct lv_list *b = lv_to_list(q, args[0]);
    struct lv *items;
    struct lv made = lv_list_of(q, &items, a->count + b->count);
    if (made.kind != LV_LIST) return made;
    if (a->count > 0) memcpy(items, a->items, a->count * sizeof *items);
    if (b->count > 0) memcpy(items + a->count, b->items, b->count * sizeof *items);
    return made;
}

static struct lv f_reverse(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    const struct lv_list *list = lv_to_list(q, v);
    struct lv *items;
    struct lv made = lv_list_of(q, &items, list->count);
    if (made.kind != LV_LIST) return made;
    for (size_t i = 0; i < list->count; i++)
        items[i] = list->items[list->count - 1 - i];
    return made;
}

/* The texts first, each for itself: they need the scratch buffer, too. */
static struct lv f_join(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    const struct lv_list *list = lv_to_list(q, v);
    str by = count > 0 && !lv_is_nil(args[0]) ? lv_to_text(q, args[0]) : STR(" ");
    str *texts = lq_memory(q, list->count * sizeof *texts);
    if (texts == NULL) return LV_NOTHING;
    for (size_t i = 0; i < list->count && q->st == ST_OK; i++)
        texts[i] = lv_is_nil(list->items[i]) ? STR("") : lv_to_js_text(q, list->items[i]);
    buf_clear(&q->scratch);
    for (size_t i = 0; i < list->count && q->st == ST_OK && !q->scratch.full; i++) {
        if (i > 0) buf_put(&q->scratch, by);
        buf_put(&q->scratch, texts[i]);
    }
    return lq_take_scratch(q);
}

static struct lv f_size(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    if (v.kind != LV_STRING && !lv_is_array(v)) return lv_number(0);
    return lq_property(q, v, lv_string(STR("size")));
}

static struct lv end_of(struct lq *q, struct lv v, bool last) {
    if (lv_is_array(v)) return lq_property(q, v, lv_string(last ? STR("last") : STR("first")));
    if (v.kind != LV_STRING || v.text.len == 0) return lv_string(STR(""));
    uint32_t cp;
    if (!last) return lv_string(str_n(v.text.ptr, lq_decode(v.text, 0, &cp)));
    size_t n = lq_decode_back(v.text, v.text.len, &cp);
    return lv_string(str_from(v.text, v.text.len - n));
}

static struct lv f_first(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return end_of(q, v, false);
}

static struct lv f_last(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return end_of(q, v, true);
}

static struct lv f_sum(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    const struct lv_list *list = lv_to_list(q, v);
    bool by_property = count > 0 && lv_is_given(args[0]);
    str property = by_property ? lv_to_text(q, args[0]) : STR_NONE;
    double sum = 0;
    for (size_t i = 0; i < list->count && q->st == ST_OK; i++) {
        struct lv item = list->items[i];
        double n = lv_to_number(by_property ? lq_dotted(q, item, property) : item);
        if (!isnan(n)) sum += n;
    }
    return lv_number(sum);
}

const struct lq_filter lq_array_filters[] = {
    {"compact", 0, 0, f_compact}, {"concat", 1, 1, f_concat},
    {"find", 1, 2, f_find},       {"first", 0, 0, f_first},
    {"join", 0, 1, f_join},       {"last", 0, 0, f_last},
    {"map", 1, 1, f_map},         {"reject", 1, 2, f_reject},
    {"reverse", 0, 0, f_reverse}, {"size", 0, 0, f_size},
    {"sort", 0, 1, f_sort},       {"sort_natural", 0, 1, f_sort_natural},
    {"sum", 0, 1, f_sum},         {"uniq", 0, 0, f_uniq},
    {"where", 1, 2, f_where},
};
const size_t lq_array_filter_count = COUNT_OF(lq_array_filters);
