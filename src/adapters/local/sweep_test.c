#include "adapters/local/sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "adapters/local/workspace.h"
#include "base/buf.h"
#include "test.h"

#define NOW_US ((int64_t)1790000000 * 1000000)
#define DAY_US ((int64_t)86400 * 1000000)

/* A run's id says how it stands: "over-N..." ended N days ago, "new..." is not known, any other is
 * open. */
static int64_t asked;
static bool ended(void *context, str run_id, int64_t *ended_us) {
    UNUSED(context);
    int64_t days = 0;
    asked++;
    if (!str_starts(run_id, STR("over-"))) return false;
    str rest = str_from(run_id, 5);
    CHECK(str_take_int(&rest, &days));
    *ended_us = NOW_US - days * DAY_US;
    return true;
}

static struct sweep *open_at(const char *dir, int64_t keep_us, const atomic_bool *stop) {
    struct sweep_options options = {
        .data_dir = str_c(dir), .keep_us = keep_us, .ended = ended, .stop = stop};
    struct sweep *s = NULL;
    struct error err = {0};
    CHECK(sweep_open(&options, &s, &err) == ST_OK, "%s", err.msg);
    asked = 0;
    return s;
}

static struct sweep_count pass(struct sweep *s, int *slices) {
    struct sweep_count count;
    int n = 1;
    while (!sweep_slice(s, NOW_US, &count))
        CHECK(++n < 10000, "the pass does not end");
    if (slices) *slices = n;
    return count;
}

static const char *in(const char *dir, const char *name) {
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void put_file(const char *dir, const char *name, str text) {
    int fd = open(in(dir, name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, text.ptr, text.len) == (ssize_t)text.len, "%s", name);
    close(fd);
}

static bool there(const char *dir, const char *name) {
    struct stat st;
    return lstat(in(dir, name), &st) == 0;
}

static void set_age(const char *dir, const char *name, int64_t days) {
    int64_t s = NOW_US / 1000000 - days * 86400;
    struct timespec times[2] = {{.tv_sec = s}, {.tv_sec = s}};
    CHECK(utimensat(AT_FDCWD, in(dir, name), times, AT_SYMLINK_NOFOLLOW) == 0);
}

static void make_workspace(const char *dir, const char *name, int64_t days) {
    char inner[512];
    CHECK(mkdir(in(dir, name), 0700) == 0, "%s", name);
    snprintf(inner, sizeof(inner), "%s/file", name);
    put_file(dir, inner, STR("x"));
    set_age(dir, name, days);
}

static int entries(const char *path) {
    DIR *d = opendir(path);
    int n = -2;
    CHECK(d != NULL, "%s", path);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static const char *work_in(const char *dir) {
    CHECK(mkdir(in(dir, "work"), 0700) == 0);
    return dir;
}

TEST(sweep_removes_what_is_over_for_long_enough_and_nothing_else) {
    static const struct {
        const char *name;
        int64_t changed_days;
        bool stays, asked;
    } cases[] = {
        {"work/over-8", 8, false, true},
        {"work/over-7.a", 7, false, true},
        {"work/over-6", 9, true, true}, /* it waited long before it ended */
        {"work/over-9-touched", 2, true, false},
        {"work/open", 30, true, true},
        {"work/new", 30, true, true},
        {"work/.hidden", 30, true, false},
        {"work/over-8 b", 30, true, false}, /* no name of a workspace */
        {"work/over-8-future", -3, false, true},
    };
    const char *dir = work_in(test_dir());
    struct sweep *s = open_at(dir, 7 * DAY_US, NULL);
    int want_asked = 0;
    int want_removed = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        make_workspace(dir, cases[i].name, cases[i].changed_days);
        want_asked += cases[i].asked;
        want_removed += !cases[i].stays;
    }
    put_file(dir, "work/over-9", STR("a file"));
    set_age(dir, "work/over-9", 30);
    struct sweep_count count = pass(s, NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        CHECK(there(dir, cases[i].name) == cases[i].stays, "%s", cases[i].name);
    CHECK(there(dir, "work/over-9"));
    CHECK(count.removed == want_removed && count.failed == 0, "%lld", (long long)count.removed);
    CHECK(asked == want_asked, "asked %lld times", (long long)asked);
    CHECK(entries(in(dir, "work")) == (int)COUNT_OF(cases) - want_removed + 1);
    sweep_close(s);
}

/* The id in a workspace whose name is a hash counts only if it is the right one. */
TEST(sweep_believes_an_id_if_its_hash_is_the_name) {
    static const struct {
        const char *name_of, *id;
        bool stays;
    } cases[] = {{"over-9/a", "over-9/a", false},
                 {"open/b", "over-9/a", true}, /* a step wrote it */
                 {"open/c", "open/c", true},
                 {"over-9/d", NULL, true},
                 {"over-9/e", "", true}};
    const char *dir = work_in(test_dir());
    struct sweep *s = open_at(dir, DAY_US, NULL);
    char names[COUNT_OF(cases)][128] = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char inner[1024];
        struct buf b;
        buf_init_fixed(&b, names[i], sizeof(names[i]) - 1);
        buf_put_c(&b, "work/");
        path_part_put(&b, str_c(cases[i].name_of));
        make_workspace(dir, names[i], 30);
        snprintf(inner, sizeof(inner), "%s/.cairn", names[i]);
        CHECK(mkdir(in(dir, inner), 0700) == 0);
        snprintf(inner, sizeof(inner), "%s/.cairn/run", names[i]);
        if (cases[i].id) put_file(dir, inner, str_c(cases[i].id));
        set_age(dir, names[i], 30);
    }
    (void)pass(s, NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        CHECK(there(dir, names[i]) == cases[i].stays, "case %zu", i);
    sweep_close(s);
}

TEST(sweep_follows_no_link) {
    const char *dir = work_in(test_dir());
    CHECK(mkdir(in(dir, "outside"), 0700) == 0);
    put_file(dir, "outside/precious", STR("x"));
    make_workspace(dir, "work/over-9", 9);
    CHECK(symlink("../../outside", in(dir, "work/over-9/folder")) == 0);
    CHECK(symlink("../../outside/precious", in(dir, "work/over-9/file-link")) == 0);
    CHECK(symlink("nowhere", in(dir, "work/over-9/dangling")) == 0);
    CHECK(symlink("../outside", in(dir, "work/over-8")) == 0);
    CHECK(symlink("../outside", in(dir, "work/.gone-x")) == 0);
    set_age(dir, "work/over-9", 9);
    set_age(dir, "work/over-8", 9);
    struct sweep *s = open_at(dir, DAY_US, NULL);
    struct sweep_count count = pass(s, NULL);
    CHECK(count.failed == 0, "%s", count.first);
    CHECK(!there(dir, "work/over-9") && !there(dir, "work/.gone-x"));
    CHECK(there(dir, "work/over-8")); /* somebody's own doing */
    CHECK(there(dir, "outside/precious"));
    sweep_close(s);
}

TEST(sweep_removes_deep_and_locked_folders) {
    enum { DEEP = 300 };
    const char *dir = work_in(test_dir());
    make_workspace(dir, "work/over-9", 9);
    int at = open(in(dir, "work/over-9"), O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < DEEP; i++) {
        CHECK(at >= 0 && mkdirat(at, "d", 0700) == 0);
        int file = openat(at, "f", O_WRONLY | O_CREAT, 0600);
        int next = openat(at, "d", O_RDONLY | O_DIRECTORY);
        if (i % 40 == 1) CHECK(fchmod(at, 0500) == 0);
        close(file);
        close(at);
        at = next;
    }
    CHECK(fchmod(at, 0) == 0);
    close(at);
    set_age(dir, "work/over-9", 9);
    struct sweep *s = open_at(dir, DAY_US, NULL);
    struct sweep_count count = pass(s, NULL);
    CHECK(count.removed == 1 && count.failed == 0, "%s %d", count.first, count.first_error);
    CHECK(entries(in(dir, "work")) == 0);
    sweep_close(s);
}

static void fill(const char *dir, const char *name, int files) {
    for (int i = 0; i < files; i++) {
        char inner[128];
        snprintf(inner, sizeof(inner), "%s/%d", name, i);
        CHECK(mknod(in(dir, inner), S_IFREG | 0600, 0) == 0);
    }
}

/* Many files take many slices; a workspace is out of sight with the first; and whoever comes after
 * a kill in the middle ends it. */
TEST(sweep_works_in_slices_and_goes_on_after_a_kill) {
    enum { FILES = SWEEP_SLICE_COST };
    const char *dir = work_in(test_dir());
    struct sweep_count count;
    make_workspace(dir, "work/over-9", 9);
    fill(dir, "work/over-9", FILES);
    set_age(dir, "work/over-9", 9);
    struct sweep *s = open_at(dir, DAY_US, NULL);
    CHECK(!sweep_slice(s, NOW_US, &count));
    CHECK(!there(dir, "work/over-9") && entries(in(dir, "work")) == 1);
    sweep_close(s); /* as a kill: nothing else remembers it */
    s = open_at(dir, 1000 * DAY_US, NULL);
    int slices = 0;
    count = pass(s, &slices);
    CHECK(slices > 1 && count.failed == 0, "%d slices", slices);
    CHECK(entries(in(dir, "work")) == 0 && asked == 0);
    sweep_close(s);
}

TEST(sweep_stops_when_told_and_takes_one_run) {
    atomic_bool stop = true;
    struct sweep_count count;
    const char *dir = work_in(test_dir());
    struct sweep *s = open_at(dir, 0, &stop);
    make_workspace(dir, "work/over-0", 0);
    make_workspace(dir, "work/over-1", 0);
    make_workspace(dir, "work/over-2", 0);
    CHECK(!sweep_slice(s, NOW_US, &count));
    CHECK(there(dir, "work/over-0") && there(dir, "work/over-1"));
    CHECK(sweep_run(s, STR("over-0"), true) && entries(in(dir, "work")) == 2);
    CHECK(!sweep_run(s, STR("over-1"), false) && entries(in(dir, "work")) == 2);
    CHECK(!there(dir, "work/over-1") && there(dir, "work/over-2"));
    CHECK(sweep_run(s, STR("never-had-one"), true));
    stop = false;
    count = pass(s, NULL);
    CHECK(count.removed == 3 && count.failed == 0, "%lld", (long long)count.removed);
    CHECK(entries(in(dir, "work")) == 0);
    sweep_close(s);
}

/* Told to stop in the middle of a workspace: what is left of it is still removed at the end. */
TEST(sweep_ends_what_a_stop_cut_short) {
    static atomic_bool stop;
    struct sweep_count count;
    char name[64];
    const char *dir = work_in(test_dir());
    stop = false;
    make_workspace(dir, "work/over-9", 9);
    for (int i = 0; i < SWEEP_SLICE_COST; i++) {
        snprintf(name, sizeof(name), "work/over-9/%d", i);
        put_file(dir, name, STR("x"));
    }
    set_age(dir, "work/over-9", 9);
    struct sweep *s = open_at(dir, DAY_US, &stop);
    sweep_left(s); /* nothing */
    CHECK(!sweep_slice(s, NOW_US, &count) && !there(dir, "work/over-9"));
    stop = true;
    CHECK(!sweep_slice(s, NOW_US, &count) && entries(in(dir, "work")) == 1);
    sweep_left(s);
    sweep_left(s);
    sweep_left(s);
    CHECK(entries(in(dir, "work")) == 0);
    sweep_close(s);
}

enum { MOUNT_REFUSED = 77 };

/* In a process with mounts of its own, which end with it. */
static int sweep_over_a_mount(const char *dir) {
    char from[512];
    snprintf(from, sizeof(from), "%s/outside", dir);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount(from, in(dir, "work/over-3/inside"), NULL, MS_BIND, NULL) != 0)
        return MOUNT_REFUSED;
    set_age(dir, "work/over-3", 3);
    struct sweep *s = open_at(dir, DAY_US, NULL);
    struct sweep_count count = pass(s, NULL);
    sweep_close(s);
    return count.failed == 1 ? 0 : 1;
}

/* What a step mounted is not its workspace, also if it is of the same file system. */
TEST(sweep_stays_out_of_what_is_mounted) {
    const char *dir = work_in(test_dir());
    int how = 0;
    make_workspace(dir, "work/over-3", 3);
    CHECK(mkdir(in(dir, "work/over-3/inside"), 0700) == 0 && mkdir(in(dir, "outside"), 0700) == 0);
    put_file(dir, "outside/file", STR("x"));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(sweep_over_a_mount(dir));
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how));
    if (WEXITSTATUS(how) == MOUNT_REFUSED) test_skip("not allowed to mount");
    CHECK(WEXITSTATUS(how) == 0 && there(dir, "outside/file"), "%d", WEXITSTATUS(how));
    CHECK(!there(dir, "work/over-3"));
}

TEST(sweep_of_a_folder_without_workspaces_is_nothing) {
    struct sweep *s = open_at(test_dir(), 0, NULL);
    struct sweep_count count = pass(s, NULL);
    CHECK(count.removed == 0 && count.failed == 0);
    CHECK(sweep_run(s, STR("over-1"), true));
    sweep_close(s);
}
