/* base/json.c: JSON at the door.
 *
 * The cheap checks come first, in one pass each over the bytes as they came: length, NUL, UTF-8,
 * depth. So a bomb of a million brackets is refused before anything is allocated for it, and
 * yyjson, whose parser does not recurse, never sees it. Then yyjson parses, and a walk over its
 * values finds repeated keys and U+0000. yyjson keeps the values of a document in one array,
 * children after their parent, so the walk is a loop; nothing in this file recurses. For the same
 * reason the n-th value of the array is the n-th token of the text that is a key or a value, which
 * is how a value is found in the text again. */
#include "base/json.h"

#include "base/uuid.h"

enum {
    PAIRWISE_KEYS_MAX = 24, /* up to here comparing each key with each is faster than hashing */
};

/* ---- memory for yyjson ---- */

static void *alc_malloc(void *ctx, size_t size) { return arena_try_raw(ctx, size); }

static void *alc_realloc(void *ctx, void *ptr, size_t old_size, size_t size) {
    if (size <= old_size) return ptr;
    void *grown = arena_try_raw(ctx, size);
    return grown == NULL ? NULL : memcpy(grown, ptr, old_size);
}

static void alc_free(void *ctx, void *ptr) {
    UNUSED(ctx); /* the arena's owner drops it with everything else */
    UNUSED(ptr);
}

static yyjson_alc alc_of(struct arena *arena) {
    return (yyjson_alc){alc_malloc, alc_realloc, alc_free, arena};
}

static void *mem_alc_malloc(void *ctx, size_t size) {
    UNUSED(ctx);
    return mem_alloc(size);
}

static void *mem_alc_realloc(void *ctx, void *ptr, size_t old_size, size_t size) {
    UNUSED(ctx);
    return size <= old_size ? ptr : mem_grow(ptr, old_size, size);
}

static void mem_alc_free(void *ctx, void *ptr) {
    UNUSED(ctx);
    mem_free(ptr);
}

/* ---- where ---- */

struct source { /* what is parsed, and how */
    str text;
    bool comments; /* JSONC */
    size_t bad_at; /* where the mistake is, once there is one */
};

static status refuse_at_offset(struct source *src, struct error *err, enum reason reason,
                               size_t offset, const char *msg) {
    char where[32];
    src->bad_at = offset;
    (void)snprintf(where, sizeof where, "offset %zu", offset);
    return error_at(err, reason, where, "%s at offset %zu", msg, offset);
}

static void put_token(struct buf *out, str key) {
    buf_put_char(out, '/');
    for (size_t i = 0; i < key.len; i++) {
        switch (key.ptr[i]) {
        case '~':
            buf_put_c(out, "~0");
            break;
        case '/':
            buf_put_c(out, "~1");
            break;
        case '\0':
            buf_put_c(out, "\\u0000");
            break; /* `where` is a C string */
        default:
            buf_put_char(out, key.ptr[i]);
            break;
        }
    }
}

static str val_str(yyjson_val *val) {
    return str_n(unsafe_yyjson_get_str(val), unsafe_yyjson_get_len(val));
}

/* One step from a container towards `target`, a key or a value inside it. */
static yyjson_val *step_towards(yyjson_val *from, const yyjson_val *target, struct buf *out) {
    bool is_obj = unsafe_yyjson_is_obj(from);
    yyjson_val *child = unsafe_yyjson_get_first(from);
    for (int64_t i = 0;; i++) {
        yyjson_val *val = is_obj ? child + 1 : child;
        yyjson_val *next = unsafe_yyjson_get_next(val);
        if (target >= next) {
            child = next;
            continue;
        }
        if (is_obj) {
            put_token(out, val_str(child));
        } else {
            buf_put_char(out, '/');
            buf_put_int(out, i);
        }
        return target == child ? child : val;
    }
}

/* Writes the JSON pointer of `target` into `where`; one that is too long ends in "...". */
static void pointer_to(yyjson_val *root, const yyjson_val *target, char where[ERROR_WHERE_MAX]) {
    static const char dots[] = "...";
    struct buf out;
    buf_init_fixed(&out, where, ERROR_WHERE_MAX - sizeof dots);
    for (yyjson_val *at = root; at != target && !out.full;)
        at = step_towards(at, target, &out);
    if (out.full) {
        size_t bad = out.len;
        (void)str_utf8(buf_str(&out), &bad); /* the cut may have gone through a character */
        memcpy(where + bad, dots, sizeof dots);
    } else {
        where[out.len] = '\0';
    }
}

/* ---- checks on the text ---- */

/* The end of the string whose opening quote is at `i`: its closing quote, or the text's end. */
static size_t skip_string(str text, size_t i) {
    for (i++; i < text.len && text.ptr[i] != '"'; i++) {
        if (text.ptr[i] == '\\') i++;
    }
    return i;
}

/* How many bytes of the text are '[' or '{', inside strings or not: if these are too few to be too
 * deep, and in a common event they are, the slow look at strings is saved. Eight bytes a step. */
static size_t count_openings(str text) {
    const uint64_t ones = UINT64_C(0x0101010101010101);
    const uint64_t low7 = 0x7F * ones;
    const uint64_t blank = ' ' * ones;
    const uint64_t brace = '{' * ones;
    size_t count = 0;
    size_t i = 0;
    for (uint64_t eight; text.len - i >= sizeof eight; i += sizeof eight) {
        memcpy(&eight, text.ptr + i, sizeof eight);
        uint64_t other = (eight | blank) ^ brace; /* '{' and '[', a bit apart, become 0 */
        uint64_t zeros = ~(((other & low7) + low7) | other | low7); /* the top bit of those bytes */
        count += (size_t)((zeros >> 7) * ones >> 56);
    }
    for (; i < text.len; i++)
        count += (text.ptr[i] | ' ') == '{';
    return count;
}

/* The last byte of the comment that begins at `i`; `i` itself if none does. */
static size_t skip_comment(str text, size_t i) {
    if (i + 1 >= text.len || text.ptr[i] != '/') return i;
    if (text.ptr[i + 1] == '/') {
        while (i + 1 < text.len && text.ptr[i + 1] != '\n' && text.ptr[i + 1] != '\r')
            i++;
    } else if (text.ptr[i + 1] == '*') {
        const char *end = memmem(text.ptr + i + 2, text.len - i - 2, "*/", 2);
        i = end == NULL ? text.len - 1 : (size_t)(end - text.ptr) + 1;
    }
    return i;
}

/* Finds the first bracket that opens level depth_max + 1. Exact as long as the text is JSON; after
 * the first mistake it may be wrong, but yyjson does not read beyond that. */
static bool find_too_deep(const struct source *src, int depth_max, size_t *at) {
    str text = src->text;
    if (count_openings(text) <= (size_t)depth_max) return false;
    int depth = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '"') {
            i = skip_string(text, i);
        } else if (c == '/' && src->comments) {
            i = skip_comment(text, i);
        } else if (c == '[' || c == '{') {
            if (depth == depth_max) {
                *at = i;
                return true;
            }
            depth++;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return false;
}

/* Is there an escape \uXXXX at `i` for the named half of a surrogate pair? */
static bool is_surrogate(str text, size_t i, bool high) {
    if (i > text.len || text.len - i < 6) return false;
    const char *p = text.ptr + i;
    if (p[0] != '\\' || p[1] != 'u' || (p[2] | 0x20) != 'd') return false;
    size_t before = 0; /* an odd backslash before it would make ours an ordinary character */
    while (before < i && text.ptr[i - 1 - before] == '\\')
        before++;
    if (before % 2 != 0) return false;
    char c = (char)(p[3] | 0x20); /* the digits 8 and 9 have this bit anyway */
    return high ? c == '8' || c == '9' || c == 'a' || c == 'b' : c >= 'c' && c <= 'f';
}

/* Translates yyjson's complaint. It points at a lone low half, or just behind a lone high one. */
static status refuse_syntax(struct source *src, const yyjson_read_err *bad, struct error *err) {
    str text = src->text;
    if (bad->code == YYJSON_READ_ERROR_MEMORY_ALLOCATION) {
        return error_set(err, ST_RETRY, "could not parse JSON: out of memory");
    }
    if (bad->code == YYJSON_READ_ERROR_INVALID_STRING) {
        size_t at = bad->pos;
        if (at >= 6 && is_surrogate(text, at - 6, true)) at -= 6;
        if (at != bad->pos || is_surrogate(text, at, false)) {
            return refuse_at_offset(src, err, REASON_JSON_SURROGATE, at,
                                    "not JSON: half a surrogate pair");
        }
    }
    char msg[160];
    (void)snprintf(msg, sizeof msg, "not JSON: %s", bad->msg);
    return refuse_at_offset(src, err, REASON_JSON_SYNTAX, bad->pos, msg);
}

static yyjson_val *parse(str text, bool comments, struct arena *arena, yyjson_read_err *bad) {
    yyjson_read_flag flags = YYJSON_READ_NUMBER_AS_RAW;
    if (comments) flags |= YYJSON_READ_ALLOW_COMMENTS | YYJSON_READ_ALLOW_TRAILING_COMMAS;
    yyjson_alc alc = alc_of(arena);
    union {
        const char *in;
        char *
            out; /* yyjson's parameter is not const, but without YYJSON_READ_INSITU it only reads */
    } bytes = {.in = text.ptr};
    yyjson_doc *doc = yyjson_read_opts(bytes.out, text.len, flags, &alc, bad);
    return doc == NULL ? NULL : yyjson_doc_get_root(doc);
}

/* Level depth_max + 1 opens at text[at]. To name that place, the text up to there is closed with
 * the brackets it lacks and parsed; a mistake before it is reported instead. Uses the arena as
 * scratch. */
static status refuse_depth(struct source *src, size_t at, int depth_max, struct arena *arena,
                           struct error *err) {
    str text = src->text;
    size_t len = at + 1;
    char *copy = len > SIZE_MAX / 2 ? NULL : arena_try_raw(arena, 2 * len);
    if (copy == NULL) return error_set(err, ST_RETRY, "could not parse JSON: out of memory");
    memcpy(copy, text.ptr, len);
    size_t top = 2 * len; /* the closing brackets, a stack that grows down from the end */
    for (size_t i = 0; i < len; i++) {
        char c = text.ptr[i];
        if (c == '"') i = skip_string(text, i);
        if (c == '/' && src->comments) i = skip_comment(text, i);
        if (c == '[') copy[--top] = ']';
        if (c == '{') copy[--top] = '}';
        if ((c == ']' || c == '}') && top < 2 * len) top++;
    }
    memmove(copy + len, copy + top, 2 * len - top);
    yyjson_read_err bad = {0};
    yyjson_val *root = parse(str_n(copy, len + (2 * len - top)), src->comments, arena, &bad);
    if (root == NULL) return refuse_syntax(src, &bad, err);
    src->bad_at = at;
    char where[ERROR_WHERE_MAX];
    pointer_to(root, unsafe_yyjson_get_next(root) - 1,
               where); /* the innermost one is the last value */
    return error_at(err, REASON_JSON_DEPTH, where,
                    "JSON is nested deeper than %d levels at offset %zu", depth_max, at);
}

static status check_text(struct source *src, struct json_limits limits, struct arena *arena,
                         struct error *err) {
    str text = src->text;
    if (text.len > limits.bytes_max) {
        char where[32];
        src->bad_at = limits.bytes_max;
        (void)snprintf(where, sizeof where, "offset %zu", limits.bytes_max);
        return error_at(err, REASON_JSON_TOO_LARGE, where,
                        "JSON has %zu bytes, more than the %zu allowed", text.len,
                        limits.bytes_max);
    }
    const char *nul = text.len == 0 ? NULL : memchr(text.ptr, '\0', text.len);
    if (nul != NULL) {
        return refuse_at_offset(src, err, REASON_JSON_NUL, (size_t)(nul - text.ptr),
                                "not JSON: a NUL byte");
    }
    size_t at;
    if (!str_utf8(text, &at)) {
        return refuse_at_offset(src, err, REASON_JSON_UTF8, at, "not JSON: invalid UTF-8");
    }
    if (find_too_deep(src, limits.depth_max, &at)) {
        return refuse_depth(src, at, limits.depth_max, arena, err);
    }
    return ST_OK;
}

/* ---- checks on the values ---- */

static yyjson_val *find_duplicate_pairwise(yyjson_val *obj) {
    yyjson_val *first = unsafe_yyjson_get_first(obj);
    yyjson_val *key = first;
    for (size_t n = unsafe_yyjson_get_len(obj); n > 0; n--) {
        for (yyjson_val *k = first; k != key; k = unsafe_yyjson_get_next(k + 1)) {
            if (unsafe_yyjson_get_len(k) == unsafe_yyjson_get_len(key) &&
                str_eq(val_str(k), val_str(key))) {
                return key;
            }
        }
        key = unsafe_yyjson_get_next(key + 1);
    }
    return NULL;
}

/* With a table of twice the size and a secret seed; false when memory is out. */
static bool find_duplicate_hashed(yyjson_val *obj, yyjson_val **found) {
    size_t count = unsafe_yyjson_get_len(obj);
    size_t cap = 1;
    while (cap < count * 2)
        cap *= 2;
    yyjson_val **table = mem_alloc(cap * sizeof(yyjson_val *));
    if (table == NULL) return false;
    uint64_t seed;
    random_bytes(&seed, sizeof seed);
    yyjson_val *key = unsafe_yyjson_get_first(obj);
    *found = NULL;
    for (size_t n = 0; n < count && *found == NULL; n++) {
        size_t i = (size_t)str_hash(val_str(key), seed) & (cap - 1);
        while (table[i] != NULL && !str_eq(val_str(table[i]), val_str(key)))
            i = (i + 1) & (cap - 1);
        if (table[i] != NULL) *found = key;
        table[i] = key;
        key = unsafe_yyjson_get_next(key + 1);
    }
    mem_free(table);
    return true;
}

static status check_keys(struct source *src, yyjson_val *obj, yyjson_val *root, struct error *err) {
    yyjson_val *again = NULL;
    if (unsafe_yyjson_get_len(obj) <= PAIRWISE_KEYS_MAX) {
        again = find_duplicate_pairwise(obj);
    } else if (!find_duplicate_hashed(obj, &again)) {
        return error_set(err, ST_RETRY, "could not parse JSON: out of memory");
    }
    if (again == NULL) return ST_OK;
    char where[ERROR_WHERE_MAX];
    pointer_to(root, again, where);
    src->bad_at = json_offset(src->text, 0, (size_t)(again + 1 - root));
    return error_at(err, REASON_JSON_DUPLICATE_KEY, where,
                    "an object has the same member twice: \"%s\"", where);
}

static status check_values(struct source *src, yyjson_val *root, bool may_hold_nul,
                           struct error *err) {
    const yyjson_val *end = unsafe_yyjson_get_next(root);
    for (yyjson_val *val = root; val < end; val++) {
        if (unsafe_yyjson_is_obj(val)) {
            status st = check_keys(src, val, root, err);
            if (st != ST_OK) return st;
        } else if (may_hold_nul && unsafe_yyjson_is_str(val) && str_has(val_str(val), '\0')) {
            char where[ERROR_WHERE_MAX];
            pointer_to(root, val, where);
            src->bad_at = json_offset(src->text, 0, (size_t)(val - root));
            return error_at(err, REASON_JSON_NUL, where, "a string holds U+0000: \"%s\"", where);
        }
    }
    return ST_OK;
}

/* ---- the interface ---- */

static status read_source(struct source *src, struct json_limits limits, struct arena *arena,
                          yyjson_val **root, struct error *err) {
    str text = src->text;
    ASSERT(limits.depth_max >= 0);
    struct arena_mark mark = arena_mark(arena);
    yyjson_val *made = NULL;
    status st = check_text(src, limits, arena, err);
    if (st == ST_OK) {
        yyjson_read_err bad = {0};
        made = parse(text, src->comments, arena, &bad);
        st = made == NULL ? refuse_syntax(src, &bad, err) : ST_OK;
    }
    if (st == ST_OK) {
        bool may_hold_nul = /* memchr first: it is far faster, and most texts have no escape */
            str_has(text, '\\') && memmem(text.ptr, text.len, "\\u0000", 6) != NULL;
        st = check_values(src, made, may_hold_nul, err);
    }
    if (st != ST_OK) {
        arena_rewind(arena, mark);
        return st;
    }
    *root = made;
    return ST_OK;
}

status json_parse(str text, struct json_limits limits, struct arena *arena, yyjson_val **root,
                  struct error *err) {
    struct source src = {.text = text};
    return read_source(&src, limits, arena, root, err);
}

status jsonc_parse(str text, struct json_limits limits, struct arena *arena, yyjson_val **root,
                   size_t *bad_at, struct error *err) {
    struct source src = {.text = text, .comments = true};
    status st = read_source(&src, limits, arena, root, err);
    *bad_at = src.bad_at;
    return st;
}

void json_pointer(yyjson_val *root, const yyjson_val *target, struct buf *out) {
    for (yyjson_val *at = root; at != target;)
        at = step_towards(at, target, out);
}

/* Can it stand inside a number, true, false or null? */
static bool is_word(char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '+' ||
           c == '-' || c == '.';
}

size_t json_offset(str text, size_t from, size_t skip) {
    for (size_t i = from; i < text.len; i++) {
        size_t start = i;
        switch (text.ptr[i]) {
        case ' ':
        case '\t':
        case '\r':
        case '\n':
        case ',':
        case ':':
        case ']':
        case '}':
            continue;
        case '/':
            i = skip_comment(text, i);
            continue;
        case '"':
            i = skip_string(text, i);
            break;
        case '[':
        case '{':
            break;
        default: /* a number or a word */
            while (i + 1 < text.len && is_word(text.ptr[i + 1]))
                i++;
            break;
        }
        if (skip-- == 0) return start;
    }
    return text.len;
}

bool json_write(yyjson_val *val, struct buf *out) {
    static const yyjson_alc alc = {mem_alc_malloc, mem_alc_realloc, mem_alc_free, NULL};
    size_t len = 0;
    char *text = yyjson_val_write_opts(val, YYJSON_WRITE_NOFLAG, &alc, &len, NULL);
    if (text == NULL) {
        out->full = true;
    } else {
        buf_put(out, str_n(text, len));
        mem_free(text);
    }
    return !out->full;
}

struct member {
    str name;
    yyjson_val *val;
};

static int by_name(const void *a, const void *b) {
    return str_cmp(((const struct member *)a)->name, ((const struct member *)b)->name);
}

/* (Both: as deep as json_parse() let the document be.) NOLINTNEXTLINE(misc-no-recursion) */
static bool put_sorted(yyjson_val *obj, const char *without, struct arena *scratch,
                       struct buf *out) {
    size_t i;
    size_t n;
    size_t used = 0;
    yyjson_val *key;
    yyjson_val *val;
    struct member *all = arena_try(scratch, (yyjson_obj_size(obj) + 1) * sizeof *all);
    if (!all) return false;
    yyjson_obj_foreach(obj, i, n, key, val) {
        if (!without || !str_eq(val_str(key), str_c(without)))
            all[used++] = (struct member){val_str(key), val};
    }
    qsort(all, used, sizeof *all, by_name);
    bool ok = true;
    for (i = 0; i < used && ok; i++) {
        buf_put_char(out, i > 0 ? ',' : '{');
        buf_put_json_str(out, all[i].name);
        buf_put_char(out, ':');
        ok = json_write_sorted(all[i].val, NULL, scratch, out);
    }
    buf_put_c(out, used > 0 ? "}" : "{}");
    return ok && !out->full;
}

/* NOLINTNEXTLINE(misc-no-recursion): see above */
bool json_write_sorted(yyjson_val *val, const char *without, struct arena *scratch,
                       struct buf *out) {
    struct arena_mark mark = arena_mark(scratch);
    size_t i;
    size_t n;
    yyjson_val *item;
    bool ok = true;
    if (yyjson_is_obj(val)) {
        ok = put_sorted(val, without, scratch, out);
    } else if (yyjson_is_arr(val)) {
        buf_put_char(out, '[');
        yyjson_arr_foreach(val, i, n, item) {
            if (i > 0) buf_put_char(out, ',');
            ok = ok && json_write_sorted(item, NULL, scratch, out);
        }
        buf_put_char(out, ']');
    } else {
        ok = json_write(val, out);
    }
    arena_rewind(scratch, mark);
    return ok && !out->full;
}

str json_text(yyjson_val *val, struct arena *arena) {
    struct arena_mark mark = arena_mark(arena);
    yyjson_alc alc = alc_of(arena);
    size_t len = 0;
    char *text = yyjson_val_write_opts(val, YYJSON_WRITE_NOFLAG, &alc, &len, NULL);
    if (text == NULL) {
        arena_rewind(arena, mark);
        return STR_NONE;
    }
    return str_n(text, len);
}

bool json_int(yyjson_val *val, int64_t *out) {
    if (yyjson_is_raw(val)) {
        return str_to_int(str_n(yyjson_get_raw(val), yyjson_get_len(val)), out);
    }
    if (!yyjson_is_int(val)) return false;
    if (yyjson_is_uint(val) && yyjson_get_uint(val) > INT64_MAX) return false;
    *out = yyjson_get_sint(val);
    return true;
}

bool json_str(yyjson_val *val, str *out) {
    if (!yyjson_is_str(val)) return false;
    *out = val_str(val);
    return true;
}

yyjson_val *json_member(yyjson_val *obj, const char *key) { return yyjson_obj_get(obj, key); }
