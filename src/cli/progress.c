#include "cli/progress.h"

#include <unistd.h>

#include "base/buf.h"
#include "base/time.h"

enum { BAR_WIDTH = 30, REDRAW_NS = 100 * 1000 * 1000 };

static bool is_terminal(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

void progress_start(struct progress *p, const char *label, bool wanted) {
    *p = (struct progress){
        .on = wanted && is_terminal(), .label = label, .start_ns = clock_mono_ns()};
}

static void write_out(const struct buf *b) {
    ssize_t ignored =
        write(STDERR_FILENO, b->ptr, b->len); /* a bar that cannot be drawn is no failure */
    UNUSED(ignored);
}

static void put_bar(struct buf *out, int64_t done, int64_t total) {
    int full = (int)((double)done / (double)total * BAR_WIDTH);
    if (full > BAR_WIDTH) full = BAR_WIDTH;
    buf_put_char(out, '[');
    for (int i = 0; i < BAR_WIDTH; i++)
        buf_put_c(out, i < full ? "=" : i == full ? ">" : " ");
    buf_printf(out, "] %3d%% ", (int)((double)done / (double)total * 100.0));
}

void progress_show(struct progress *p, int64_t done, int64_t total, int64_t things) {
    if (!p->on) return;
    int64_t now = clock_mono_ns();
    if (p->drawn && now - p->shown_ns < REDRAW_NS) return;
    p->shown_ns = now;
    p->drawn = true;
    char mem[256];
    struct buf line;
    buf_init_fixed(&line, mem, sizeof(mem));
    double seconds = (double)(now - p->start_ns) / 1e9;
    buf_printf(&line, "\r\033[K%s ", p->label);
    if (total > 0) put_bar(&line, done, total);
    buf_printf(&line, "%lld, %.0f/s", (long long)things,
               seconds > 0 ? (double)things / seconds : 0.0);
    write_out(&line);
}

void progress_tick(void *context, int64_t done, int64_t total) {
    progress_show(context, done, total, done);
}

void progress_end(struct progress *p) {
    if (!p->on || !p->drawn) return;
    char mem[8];
    struct buf line;
    buf_init_fixed(&line, mem, sizeof(mem));
    buf_put_c(&line, "\r\033[K");
    write_out(&line);
    p->drawn = false;
}
