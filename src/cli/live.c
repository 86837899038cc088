#include "cli/live.h"

#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/time.h"
#include "cli/table.h"

enum {
    BAR_WIDTH = 30,
    NAME_WIDTH = 40,
    WIDTH_DEFAULT = 80,
    ROWS_DEFAULT = 24,
    LINE_BYTES = 1024, /* of one line: a name, a code, a few words */
};
#define LIVE_BYTES_MAX ((size_t)1024 * 1024) /* written at once; a large batch is cut */
#define LIVE_ARENA_MAX ((size_t)1024 * 1024 * 1024)

enum live_state { LIVE_IDLE, LIVE_RUNNING, LIVE_BACKOFF, LIVE_DONE };

struct live_step {
    str id;
    uint8_t phase, state;
    const char *type; /* NULL: not known */
    int64_t attempt, since_us, retry_us;
    struct live_step *next, *prev; /* those that run or wait for their next attempt, oldest first */
};

struct live {
    bool on, terminal, colour;
    str run_id;
    struct arena arena, scratch;
    struct map steps;
    int64_t total[PHASE_COUNT], done[PHASE_COUNT];
    bool has_plan;
    struct live_step running; /* the ends of the list */
    int64_t running_count;
    const char *banner; /* what the run as a whole waits for, or NULL */
    struct buf out;
    int drawn; /* lines on the screen */
    int64_t drawn_ns, started_us;
};

/* ---- small pieces ---- */

void live_duration(int64_t us, struct buf *out) {
    int64_t s = us / 1000000;
    if (us < 0) us = s = 0;
    if (s < 60)
        buf_printf(out, "%lld.%llds", (long long)s, (long long)(us / 100000 % 10));
    else if (s < 3600)
        buf_printf(out, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
    else
        buf_printf(out, "%lldh%02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
}

static void put_clock(struct buf *out, int64_t us) {
    int64_t s = us / 1000000 % 86400;
    buf_printf(out, "%02d:%02d:%02d ", (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
}

static void write_out(struct live *l) {
    for (size_t at = 0; at < l->out.len;) {
        ssize_t n = write(STDERR_FILENO, l->out.ptr + at, l->out.len - at);
        if (n <= 0) break; /* progress that cannot be shown is no failure */
        at += (size_t)n;
    }
    buf_clear(&l->out);
}

/* A member of a payload, as text; STR_NONE if it is not there. In the scratch arena. */
static str member(struct live *l, str payload, const char *name) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    yyjson_val *root = NULL;
    struct error ignored;
    str text = STR_NONE;
    if (!payload.ptr || json_parse(payload, limits, &l->scratch, &root, &ignored) != ST_OK)
        return STR_NONE;
    yyjson_val *v = json_member(root, name);
    if (!v || json_str(v, &text)) return text;
    return json_text(v, &l->scratch);
}

static struct live_step *step_of(struct live *l, str id) {
    struct live_step *s = map_get(&l->steps, id);
    if (s) return s;
    s = arena_try(&l->arena, sizeof(*s));
    if (!s || !arena_try_str(&l->arena, id, &s->id) || !map_put(&l->steps, s->id, s)) return NULL;
    s->phase = PHASE_APPLY;
    return s;
}

static bool is_listed(const struct live_step *s) {
    return s->state == LIVE_RUNNING || s->state == LIVE_BACKOFF;
}

/* Keeps the list and the counts in step with the state. */
static void set_state(struct live *l, struct live_step *s, enum live_state state) {
    bool was = is_listed(s);
    if (s->state == LIVE_DONE) l->done[s->phase]--;
    s->state = (uint8_t)state;
    if (state == LIVE_DONE) l->done[s->phase]++;
    if (was && !is_listed(s)) {
        s->prev->next = s->next;
        s->next->prev = s->prev;
        l->running_count--;
    } else if (!was && is_listed(s)) {
        s->next = &l->running;
        s->prev = l->running.prev;
        s->prev->next = s;
        l->running.prev = s;
        l->running_count++;
    }
}

/* ---- opening ---- */

struct live *live_open(bool on) {
    const char *term = getenv("TERM");
    const char *no_colour = getenv("NO_COLOR");
    struct live *l = mem_alloc(sizeof(*l));
    if (!l) panic(__FILE__, __LINE__, "out of memory before anything began");
    l->on = on;
    l->terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    l->colour = l->terminal && !(no_colour && no_colour[0]);
    l->running.next = l->running.prev = &l->running;
    arena_init(&l->arena, 4096, LIVE_ARENA_MAX);
    arena_init(&l->scratch, 4096, (size_t)16 * 1024 * 1024);
    map_init(&l->steps);
    buf_init(&l->out, LIVE_BYTES_MAX);
    return l;
}

void live_run(struct live *l, str run_id) { l->run_id = arena_str(&l->arena, run_id); }

void live_started(struct live *l, int64_t us) {
    if (l->started_us == 0) l->started_us = us;
}

void live_plan(struct live *l, const struct plan *plan) {
    if (!l->on || l->has_plan) return;
    l->has_plan = true;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        struct live_step *s = step_of(l, plan->steps[i].id);
        if (!s) return;
        s->phase = (uint8_t)plan->steps[i].phase;
        s->type = plan_type_name(plan->steps[i].type);
        l->total[s->phase]++;
    }
}

void live_flow(struct live *l, const struct flow *flow) {
    if (!l->on) return;
    live_plan(l, flow->plan);
    for (uint32_t i = 0; i < flow->plan->step_count; i++) {
        const struct flow_step *f = &flow->steps[i];
        struct live_step *s = step_of(l, flow->plan->steps[i].id);
        if (!s) return;
        s->attempt = f->attempt;
        s->since_us = f->started_us;
        s->retry_us = f->due_us;
        if (f->phase == FLOW_SETTLED) set_state(l, s, LIVE_DONE);
        if (f->phase == FLOW_OPEN) set_state(l, s, LIVE_RUNNING);
        if (f->phase == FLOW_BACKOFF) set_state(l, s, LIVE_BACKOFF);
    }
}

/* ---- the bars ---- */

static void screen_size(int *width, int *rows) {
    struct winsize size = {0};
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
    *width = known && size.ws_col > 0 ? size.ws_col : WIDTH_DEFAULT;
    *rows = known && size.ws_row > 0 ? size.ws_row : ROWS_DEFAULT;
}

static void wipe(struct live *l) {
    if (l->drawn > 0) buf_printf(&l->out, "\033[%dA\r\033[J", l->drawn);
    l->drawn = 0;
}

/* A line never wraps, or the next redraw would begin in the wrong place. */
static void put_line(struct live *l, str text, int width, const char *colour) {
    if (l->colour && colour) buf_put_c(&l->out, colour);
    (void)text_show(text, width > 1 ? width - 1 : 1, &l->out);
    buf_put_c(&l->out, l->colour && colour ? "\033[0m\n" : "\n");
    l->drawn++;
}

static void draw_bar(struct live *l, int phase, int width) {
    char mem[LINE_BYTES];
    struct buf line;
    buf_init_fixed(&line, mem, sizeof(mem));
    int bar = width < BAR_WIDTH + 30 ? 10 : BAR_WIDTH;
    int full = (int)(l->done[phase] * bar / l->total[phase]);
    buf_printf(&line, "%-8s[", plan_phase_name((enum plan_phase)phase));
    for (int i = 0; i < bar; i++)
        buf_put_c(&line, i < full ? "=" : i == full ? ">" : " ");
    buf_printf(&line, "] %lld/%lld", (long long)l->done[phase], (long long)l->total[phase]);
    bool all = l->done[phase] == l->total[phase];
    put_line(l, buf_str(&line), width, all ? "\033[32m" : "\033[36m");
}

static void draw_step(struct live *l, const struct live_step *s, int64_t now_us, int width) {
    char mem[LINE_BYTES];
    struct buf line;
    buf_init_fixed(&line, mem, sizeof(mem) - 1);
    buf_put_c(&line, "  ");
    int used = text_show(s->id, width / 2 < NAME_WIDTH ? width / 2 : NAME_WIDTH, &line);
    for (int i = used; i < 20; i++)
        buf_put_char(&line, ' ');
    buf_printf(&line, " %-8s ", s->type ? s->type : "");
    if (s->state == LIVE_BACKOFF) {
        buf_printf(&line, "attempt %lld in ", (long long)s->attempt);
        live_duration(s->retry_us - now_us, &line);
    } else {
        live_duration(now_us - s->since_us, &line);
        if (s->attempt > 1) buf_printf(&line, "  attempt %lld", (long long)s->attempt);
    }
    put_line(l, buf_str(&line), width, s->state == LIVE_BACKOFF ? "\033[33m" : NULL);
}

static void draw_all(struct live *l) {
    int width = 0;
    int rows = 0;
    int64_t now_us = clock_wall_us();
    char mem[LINE_BYTES];
    struct buf line;
    screen_size(&width, &rows);
    wipe(l);
    for (int i = 0; i < PHASE_COUNT; i++) {
        if (l->total[i] > 0) draw_bar(l, i, width);
    }
    buf_init_fixed(&line, mem, sizeof(mem));
    if (l->banner) put_line(l, str_c(l->banner), width, "\033[33m");
    int64_t left = l->running_count;
    for (const struct live_step *s = l->running.next; s != &l->running; s = s->next) {
        if (l->drawn >= rows - 3 && left > 1) break;
        draw_step(l, s, now_us, width);
        left--;
    }
    if (left > 0) {
        buf_printf(&line, "  ... and %lld more", (long long)left);
        put_line(l, buf_str(&line), width, NULL);
    }
    write_out(l);
    l->drawn_ns = clock_mono_ns();
}

void live_draw(struct live *l) {
    if (!l->on || !l->terminal) return;
    if (clock_mono_ns() - l->drawn_ns < (int64_t)LIVE_DRAW_MS * 1000000) return;
    draw_all(l);
}

void live_close(struct live *l) {
    if (!l) return;
    wipe(l);
    write_out(l);
    buf_release(&l->out);
    map_release(&l->steps);
    arena_release(&l->scratch);
    arena_release(&l->arena);
    mem_free(l);
}

/* ---- what happened ---- */

static void say(struct live *l, int64_t us, str name, const char *colour, const char *fmt, ...)
    PRINTF_LIKE(5, 6);
static void say(struct live *l, int64_t us, str name, const char *colour, const char *fmt, ...) {
    char text[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    wipe(l);
    put_clock(&l->out, us);
    if (l->colour && colour) buf_put_c(&l->out, colour);
    if (name.ptr) {
        (void)text_show(name, 0, &l->out);
        buf_put_char(&l->out, ' ');
    }
    (void)text_show(n < 0 ? STR("") : str_c(text), 0, &l->out);
    if (l->colour && colour) buf_put_c(&l->out, "\033[0m");
    buf_put_char(&l->out, '\n');
    if (l->out.len > LIVE_BYTES_MAX / 2) write_out(l);
}

static const char *took(char mem[32], int64_t us) {
    struct buf b;
    buf_init_fixed(&b, mem, 31);
    live_duration(us, &b);
    mem[b.len] = 0;
    return mem;
}

/* On a terminal the lines of running steps say most of it; what scrolls by is what a person must
 * know afterwards. */
static void step_started(struct live *l, struct live_step *s, const struct live_event *e) {
    str type = member(l, e->payload, "stepType");
    s->attempt = e->attempt;
    s->since_us = e->us;
    set_state(l, s, LIVE_RUNNING);
    if (str_eq(type, STR("approval"))) {
        say(l, e->us, s->id, NULL, "waits for approval: cairn run approve %.*s %.*s",
            STR_ARG(l->run_id), STR_ARG(s->id));
        return;
    }
    if (str_eq(type, STR("wait"))) {
        str signal = member(l, e->payload, "signal");
        say(l, e->us, s->id, NULL, "waits for a signal: cairn run signal %.*s %.*s",
            STR_ARG(l->run_id), STR_ARG(signal));
        return;
    }
    if (l->terminal) return;
    if (e->attempt > 1)
        say(l, e->us, s->id, NULL, "started, attempt %lld", (long long)e->attempt);
    else
        say(l, e->us, s->id, NULL, "started");
}

static const struct live_event *find_retry(const struct live_event *events, size_t count,
                                           size_t failed) {
    for (size_t i = failed + 1; i < count; i++) {
        if (events[i].type == EVENT_STEP_RETRIED &&
            str_eq(events[i].step_id, events[failed].step_id))
            return &events[i];
    }
    return NULL;
}

static int64_t delay_us(struct live *l, const struct live_event *retry) {
    int64_t ms = 0;
    str text = member(l, retry->payload, "delayMs");
    return text.ptr && str_to_int(text, &ms) ? ms * 1000 : 0;
}

static void step_failed(struct live *l, struct live_step *s, const struct live_event *e,
                        const struct live_event *retry) {
    char mem[32];
    str code = member(l, e->payload, "code");
    str message = member(l, e->payload, "message");
    set_state(l, s, LIVE_DONE);
    if (retry)
        say(l, e->us, s->id, "\033[33m", "failed (%.*s), retry %lld in %s", STR_ARG(code),
            (long long)retry->attempt, took(mem, delay_us(l, retry)));
    else
        say(l, e->us, s->id, "\033[31m", "failed (%.*s)%s%.*s", STR_ARG(code),
            message.len > 0 ? ": " : "", STR_ARG(message));
}

static void on_step(struct live *l, const struct live_event *events, size_t count, size_t i) {
    char mem[32];
    const struct live_event *e = &events[i];
    struct live_step *s = step_of(l, e->step_id);
    if (!s) return;
    if (e->type == EVENT_STEP_STARTED) {
        step_started(l, s, e);
    } else if (e->type == EVENT_STEP_COMPLETED) {
        bool known = s->since_us > 0;
        set_state(l, s, LIVE_DONE);
        if (!l->terminal && known)
            say(l, e->us, s->id, NULL, "completed in %s", took(mem, e->us - s->since_us));
    } else if (e->type == EVENT_STEP_FAILED) {
        step_failed(l, s, e, find_retry(events, count, i));
    } else if (e->type == EVENT_STEP_SKIPPED) {
        str reason = member(l, e->payload, "reason");
        set_state(l, s, LIVE_DONE);
        if (!l->terminal) say(l, e->us, s->id, NULL, "skipped: %.*s", STR_ARG(reason));
    } else if (e->type == EVENT_STEP_RETRIED) {
        bool asked = str_eq(member(l, e->payload, "reason"), STR("signal"));
        s->attempt = e->attempt;
        s->retry_us = e->us + delay_us(l, e);
        set_state(l, s, LIVE_BACKOFF);
        if (asked) say(l, e->us, s->id, NULL, "is retried: somebody asked for it");
    }
}

static void on_run(struct live *l, const struct live_event *e) {
    char mem[32];
    int64_t us = l->started_us > 0 ? e->us - l->started_us : 0;
    if (e->type == EVENT_RUN_STARTED) {
        l->started_us = e->us;
        l->banner = NULL;
        if (!l->terminal) say(l, e->us, STR_NONE, NULL, "run %.*s started", STR_ARG(l->run_id));
    } else if (e->type == EVENT_RUN_QUEUED) {
        bool approval = str_eq(member(l, e->payload, "reason"), STR("approval"));
        if (approval)
            say(l, e->us, STR_NONE, NULL, "run waits for approval: cairn run approve %.*s",
                STR_ARG(l->run_id));
        else
            say(l, e->us, STR_NONE, NULL, "run waits until others end");
        l->banner = approval ? "waits for approval" : "waits until others end";
    } else if (e->type == EVENT_RUN_PAUSED) {
        say(l, e->us, STR_NONE, NULL, "run paused: cairn run resume %.*s", STR_ARG(l->run_id));
        l->banner = "paused";
    } else if (e->type == EVENT_RUN_RESUMED) {
        say(l, e->us, STR_NONE, NULL, "run resumed");
        l->banner = NULL;
    } else if (e->type == EVENT_RUN_RECOVERED) {
        say(l, e->us, STR_NONE, NULL, "run goes on after an interruption");
    } else if (e->type == EVENT_RUN_COMPLETED) {
        say(l, e->us, STR_NONE, "\033[32m", "run completed in %s", took(mem, us));
    } else if (e->type == EVENT_RUN_CANCELLED) {
        say(l, e->us, STR_NONE, "\033[33m", "run cancelled after %s", took(mem, us));
    } else if (e->type == EVENT_RUN_FAILED) {
        str code = member(l, e->payload, "code");
        say(l, e->us, STR_NONE, "\033[31m", "run failed after %s (%.*s)", took(mem, us),
            STR_ARG(code));
    }
}

void live_events(struct live *l, const struct live_event *events, size_t count) {
    if (!l->on) return;
    for (size_t i = 0; i < count; i++) {
        arena_reset(&l->scratch);
        if (event_type_info(events[i].type < EVENT_TYPE_COUNT ? events[i].type : EVENT_UNKNOWN)
                ->family == FAMILY_STEP)
            on_step(l, events, count, i);
        else
            on_run(l, &events[i]);
    }
    if (l->terminal && l->drawn == 0 && l->out.len > 0) l->drawn_ns = 0; /* lines moved the bars */
    if (l->terminal)
        live_draw(l);
    else
        write_out(l);
}
