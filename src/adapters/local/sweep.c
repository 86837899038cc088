#include "adapters/local/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/local/local.h"
#include "adapters/local/workspace.h"
#include "base/arena.h"
#include "base/uuid.h"

enum { COST_LOOK = 1, COST_REMOVE = 2, COST_ASK = 20, RUN_ID_BYTES_MAX = 4096 };
#define GONE ".gone-"
enum { GONE_NAME_MAX = sizeof(GONE) + UUID_TEXT_LEN };

struct level { /* a folder that is being removed */
    DIR *dir;
    char name[NAME_MAX + 1];
    bool removed, failed; /* anything in it */
};

struct sweep {
    struct sweep_options options;
    char *path; /* of the folder `work` */
    DIR *work;  /* NULL: no pass is under way */
    dev_t device;
    char left[GONE_NAME_MAX]; /* what the last slice did not come to the end of; or "" */
    bool again;               /* something was moved up: one more pass finds it */
    int64_t cost;             /* of this slice, so far */
    bool heedless;            /* of the wish to stop */
    struct sweep_count count;
    int depth; /* of what is being removed, */
    int error; /* and the first thing that stays */
    struct level levels[SWEEP_DEPTH_MAX];
};

static bool enough(const struct sweep *s) {
    const atomic_bool *stop = s->options.stop;
    return s->cost >= SWEEP_SLICE_COST || (stop && !s->heedless && atomic_load(stop));
}

static void note_failure(struct sweep *s, const char *name, int error) {
    if (s->count.failed++ > 0) return;
    snprintf(s->count.first, sizeof(s->count.first), "%s", name);
    s->count.first_error = error;
}

/* ---- removing ---- */

/* Programs make folders that nobody may write to, or enter. By the descriptor: a link that was put
 * in its place meanwhile is not followed. */
static void make_ours(int parent, const char *name) {
    char path[64];
    int fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    (void)chmod(path, 0700); /* if it may not be, opening it fails */
    close(fd);
}

/* Something was mounted here, perhaps from this very file system. */
static bool is_mounted(int fd) {
    struct statx st;
    return statx(fd, "", AT_EMPTY_PATH, 0, &st) == 0 &&
           (st.stx_attributes & st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
}

static DIR *folder_open(int parent, const char *name, dev_t device) {
    struct stat st;
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(parent, name, flags);
    if (fd < 0 && errno == EACCES) {
        make_ours(parent, name);
        fd = openat(parent, name, flags);
    }
    if (fd < 0) return NULL;
    if (fstat(fd, &st) != 0 || st.st_dev != device || is_mounted(fd)) {
        close(fd);
        errno = EXDEV;
        return NULL;
    }
    if ((st.st_mode & 0700) != 0700) (void)fchmod(fd, 0700);
    DIR *dir = fdopendir(fd);
    if (!dir) close(fd);
    return dir;
}

static void gone_name(char out[GONE_NAME_MAX]) {
    char id[UUID_TEXT_LEN];
    uuid_format(uuid_v4(), id);
    snprintf(out, GONE_NAME_MAX, GONE "%.*s", UUID_TEXT_LEN, id);
}

/* Whatever it is, it is not `name` any more, but something to be removed. */
static bool set_aside(int work, int parent, const char *name, char out[GONE_NAME_MAX]) {
    gone_name(out);
    return renameat(parent, name, work, out) == 0;
}

/* ---- a tree ---- */

static int parent_of(const struct sweep *s, int depth) {
    return dirfd(depth > 1 ? s->levels[depth - 2].dir : s->work);
}

static bool enter(struct sweep *s, const char *name) {
    struct level *l = &s->levels[s->depth];
    l->dir = folder_open(parent_of(s, s->depth + 1), name, s->device);
    if (!l->dir) return false;
    snprintf(l->name, sizeof(l->name), "%s", name);
    l->removed = l->failed = false;
    s->depth++;
    return true;
}

/* The end of the folder on top was read. Reading while removing may pass over entries: then what is
 * left is read again, as long as that gets on. */
static void leave(struct sweep *s) {
    struct level *l = &s->levels[s->depth - 1];
    int parent = parent_of(s, s->depth);
    closedir(l->dir);
    l->dir = NULL;
    s->cost += COST_REMOVE;
    if (unlinkat(parent, l->name, AT_REMOVEDIR) == 0 || errno == ENOENT) {
        s->depth--;
        return;
    }
    int why = errno;
    if (why == ENOTEMPTY && l->removed && !l->failed) {
        l->removed = false;
        l->dir = folder_open(parent, l->name, s->device);
        if (l->dir) return;
    }
    if (s->error == 0) s->error = why;
    if (--s->depth > 0) s->levels[s->depth - 1].failed = true;
}

/* Removes one entry of the folder on top, or makes it the top. 0, or why it stays. */
static int remove_one(struct sweep *s, const char *name) {
    struct level *top = &s->levels[s->depth - 1];
    int fd = dirfd(top->dir);
    s->cost += COST_REMOVE;
    if (unlinkat(fd, name, 0) == 0) {
        top->removed = true;
        return 0;
    }
    if (errno == ENOENT) return 0;
    if (errno != EISDIR && errno != EPERM) return errno;
    top->removed = true; /* it will be */
    if (s->depth < SWEEP_DEPTH_MAX) return enter(s, name) || errno == ENOENT ? 0 : errno;
    char aside[GONE_NAME_MAX];
    make_ours(fd, name);
    if (!set_aside(dirfd(s->work), fd, name, aside)) return errno;
    s->again = true;
    return 0;
}

/* Removes the folder on top and all below it, if the slice is long enough. */
static void remove_tree(struct sweep *s) {
    while (s->depth > 0 && !enough(s)) {
        struct level *top = &s->levels[s->depth - 1];
        const struct dirent *e = readdir(top->dir);
        if (!e) {
            leave(s);
            continue;
        }
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        int why = remove_one(s, e->d_name);
        if (why == 0) continue;
        top->failed = true;
        if (s->error == 0) s->error = why;
    }
    while (s->depth > 0)
        closedir(s->levels[--s->depth].dir);
}

static bool is_there(const struct sweep *s, const char *name) {
    struct stat st;
    return fstatat(dirfd(s->work), name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Removes something whose name begins with ".gone-"; remembers it if that takes another slice. */
static void remove_gone(struct sweep *s, const char *name) {
    s->left[0] = 0;
    s->error = 0;
    s->cost += COST_REMOVE;
    if (unlinkat(dirfd(s->work), name, 0) == 0 || errno == ENOENT) return;
    if (enter(s, name))
        remove_tree(s);
    else
        s->error = errno;
    if (!is_there(s, name)) return;
    if (s->error != 0)
        note_failure(s, name, s->error);
    else if (strlen(name) < sizeof(s->left))
        snprintf(s->left, sizeof(s->left), "%s", name);
    else
        s->again = true; /* not a name of ours, but one to be removed */
}

/* ---- whose it is ---- */

/* The id behind a name that is a hash, which the workspace itself holds: right only if its hash is
 * the name. */
static str hashed_id(int work, const char *name, char room[RUN_ID_BYTES_MAX]) {
    ssize_t n = -1;
    int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC;
    int top = openat(work, name, flags | O_DIRECTORY);
    int inner = top >= 0 ? openat(top, WORKSPACE_OWN, flags | O_DIRECTORY) : -1;
    int fd = inner >= 0 ? openat(inner, WORKSPACE_RUN, flags | O_NONBLOCK) : -1;
    if (fd >= 0) n = read(fd, room, RUN_ID_BYTES_MAX);
    if (fd >= 0) close(fd);
    if (inner >= 0) close(inner);
    if (top >= 0) close(top);
    char mem[PATH_PART_MAX + 1];
    struct buf part;
    buf_init_fixed(&part, mem, sizeof(mem));
    str id = n > 0 ? str_n(room, (size_t)n) : STR_NONE;
    if (id.len > 0) path_part_put(&part, id);
    return id.len > 0 && str_eq(buf_str(&part), str_c(name)) ? id : STR_NONE;
}

/* A workspace changes only while its run goes on, so one that was written to lately need not be
 * asked about. */
static bool may_be_old(struct sweep *s, const char *name, int64_t now_us) {
    struct stat st;
    s->cost += COST_LOOK;
    if (fstatat(dirfd(s->work), name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(st.st_mode))
        return false;
    int64_t changed_us = (int64_t)st.st_mtim.tv_sec * 1000000 + st.st_mtim.tv_nsec / 1000;
    return changed_us > now_us || now_us - changed_us >= s->options.keep_us;
}

static bool is_over(struct sweep *s, const char *name, int64_t now_us) {
    char room[RUN_ID_BYTES_MAX];
    str id = str_c(name);
    int64_t ended_us = 0;
    if (name[0] == '~')
        id = hashed_id(dirfd(s->work), name, room);
    else if (!path_part_safe(id))
        id = STR_NONE;
    if (!id.ptr) return false;
    s->cost += COST_ASK;
    return s->options.ended(s->options.context, id, &ended_us) &&
           now_us - ended_us >= s->options.keep_us;
}

static void remove_workspace(struct sweep *s, const char *name) {
    char aside[GONE_NAME_MAX];
    if (!set_aside(dirfd(s->work), dirfd(s->work), name, aside)) {
        if (errno != ENOENT) note_failure(s, name, errno); /* ENOENT: another process was faster */
        return;
    }
    s->count.removed++;
    remove_gone(s, aside);
}

/* ---- slices ---- */

static void work_close(struct sweep *s) {
    if (s->work) closedir(s->work);
    s->work = NULL;
}

static bool pass_begin(struct sweep *s) {
    struct stat st;
    s->work = opendir(s->path);
    if (s->work && fstat(dirfd(s->work), &st) == 0) {
        s->device = st.st_dev;
        return true;
    }
    work_close(s);
    return false; /* no step was ever carried out here */
}

static void pass_end(struct sweep *s, struct sweep_count *count) {
    work_close(s);
    *count = s->count;
    s->count = (struct sweep_count){0};
}

bool sweep_slice(struct sweep *s, int64_t now_us, struct sweep_count *count) {
    s->cost = 0;
    *count = (struct sweep_count){0};
    if (!s->work && !pass_begin(s)) return true;
    while (s->left[0] && !enough(s)) {
        char name[GONE_NAME_MAX];
        snprintf(name, sizeof(name), "%s", s->left);
        remove_gone(s, name);
    }
    while (!enough(s)) {
        const struct dirent *e = readdir(s->work);
        if (!e && s->again) {
            s->again = false;
            rewinddir(s->work);
            continue;
        }
        if (!e) {
            pass_end(s, count);
            return true;
        }
        if (str_starts(str_c(e->d_name), STR(GONE)))
            remove_gone(s, e->d_name);
        else if (e->d_name[0] != '.' && may_be_old(s, e->d_name, now_us) &&
                 is_over(s, e->d_name, now_us))
            remove_workspace(s, e->d_name);
    }
    return false;
}

bool sweep_run(struct sweep *s, str run_id, bool remove) {
    char mem[PATH_PART_MAX + 1];
    char left[GONE_NAME_MAX];
    struct buf part;
    buf_init_fixed(&part, mem, sizeof(mem) - 1);
    path_part_put(&part, run_id);
    mem[part.len] = 0;
    bool pass = s->work != NULL;
    if (!pass && !pass_begin(s)) return true;
    memcpy(left, s->left, sizeof(left)); /* of the pass that is under way */
    s->left[0] = 0;
    s->cost = remove ? 0 : SWEEP_SLICE_COST;
    s->heedless = true;
    remove_workspace(s, mem);
    s->heedless = false;
    bool whole = s->left[0] == 0;
    memcpy(s->left, left, sizeof(left));
    if (!whole) s->again = true;
    if (!pass) work_close(s);
    return whole;
}

void sweep_left(struct sweep *s) {
    char name[GONE_NAME_MAX];
    if (!s->work || !s->left[0]) return;
    snprintf(name, sizeof(name), "%s", s->left);
    s->cost = 0;
    s->heedless = true;
    remove_gone(s, name);
    s->heedless = false;
}

status sweep_open(const struct sweep_options *options, struct sweep **out, struct error *err) {
    struct sweep *s = mem_alloc(sizeof(*s));
    size_t size = options->data_dir.len + sizeof("/work");
    char *path = s ? mem_alloc(size) : NULL;
    if (!path) {
        mem_free(s);
        return error_set(err, ST_RETRY, "sweep: out of memory");
    }
    snprintf(path, size, "%.*s/work", STR_ARG(options->data_dir));
    s->options = *options;
    s->options.data_dir = STR_NONE;
    s->path = path;
    *out = s;
    return ST_OK;
}

void sweep_close(struct sweep *s) {
    if (!s) return;
    work_close(s);
    mem_free(s->path);
    mem_free(s);
}
