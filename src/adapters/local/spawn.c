/* adapters/local/spawn.c: fork and exec on threads that outlive their children. */
#include "adapters/local/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "adapters/local/workspace.h"
#include "base/arena.h"

/* ---- the child ---- */

enum { CHILD_STACK = 32 * 1024 }; /* of the child until execve(): a few small frames */

/* What the child needs, made by the parent: until execve() it runs in the parent's memory and may
 * only make system calls. */
struct child {
    const char *file, *cwd;
    char **argv, **envp;
    int in, out, err; /* all above 2 */
    pid_t parent;
    volatile int error; /* written by the child, read by the parent: their memory is one */
    volatile enum spawn_stage stage;
};

/* The sanitizers keep books on functions and on calls of libc, in the memory that we share. */
#define CHILD_CODE __attribute__((noinline, no_sanitize("address", "thread", "undefined")))

CHILD_CODE static int child_fail(struct child *c, enum spawn_stage stage) {
    c->error = errno;
    c->stage = stage;
    syscall(SYS_exit_group, 127);
    return 127;
}

/* Nothing that is ignored or caught in here is so in there; only then may signals come in. All
 * bytes zero is the default action, and the empty set. */
CHILD_CODE static void child_signals(void) {
    static const uint64_t zero[8] = {0};
    for (int sig = 1; sig < NSIG; sig++)
        syscall(SYS_rt_sigaction, sig, zero, NULL, sizeof zero[0]);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, zero, NULL, sizeof zero[0]);
}

CHILD_CODE static int child_run(void *arg) {
    struct child *c = arg;
    syscall(SYS_setsid); /* a group for kill(), and no terminal */
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (syscall(SYS_getppid) != c->parent)
        return child_fail(c, SPAWN_FORK); /* it is dead already */
    child_signals();
    if (syscall(SYS_dup3, c->in, 0, 0) < 0 || syscall(SYS_dup3, c->out, 1, 0) < 0 ||
        syscall(SYS_dup3, c->err, 2, 0) < 0)
        return child_fail(c, SPAWN_PREPARE);
    /* Ours are all close-on-exec; those of libraries may not be. An old kernel cannot: no matter.
     */
    syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
    if (syscall(SYS_chdir, c->cwd) != 0) return child_fail(c, SPAWN_ENTER);
    syscall(SYS_execve, c->file, c->argv, c->envp);
    return child_fail(c, SPAWN_EXEC);
}

#ifdef __SANITIZE_THREAD__ /* its clone() would prepare the child, in our memory, for a life after \
                              fork() */
int clone_plain(int (*run)(void *arg), void *stack, int flags, void *arg, ...) __asm__("__clone");
#else
#define clone_plain clone
#endif

/* As vfork(), with a stack of its own: it copies no page tables, however big we are, and holds this
 * thread until the new program is in place. posix_spawn() does the same but cannot set the
 * parent-death signal. */
__attribute__((noinline)) static pid_t child_start(struct child *c) {
    _Alignas(64) char stack[CHILD_STACK];
    return clone_plain(child_run, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, c);
}

/* ---- the parent's side ---- */

/* A descriptor above 2, or the child's dup2() would trample on it. */
static int fd_high(int fd) {
    if (fd < 0 || fd > 2) return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int error = errno;
    close(fd);
    errno = error;
    return high;
}

static void fd_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Our end to read without waiting, the child's to write. */
static bool pipe_make(int *ours, int *theirs) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    *ours = fd_high(ends[0]);
    *theirs = fd_high(ends[1]);
    if (*ours < 0 || *theirs < 0) return false;
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

/* A file in memory instead of a pipe: nobody has to feed it, and it never touches a disk. */
static int input_make(str input) {
    if (!input.ptr) return fd_high(open("/dev/null", O_RDONLY | O_CLOEXEC));
    int fd = fd_high(memfd_create("stdin", MFD_CLOEXEC));
    if (fd < 0) return fd;
    for (str rest = input; rest.len > 0;) {
        ssize_t n = write(fd, rest.ptr, rest.len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            fd_close(&fd);
            errno = ENOMEM;
            return -1;
        }
        rest = str_from(rest, (size_t)n);
    }
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static bool is_program(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* execvp()'s search, but before the child and in absolute folders only. `room` has PATH_MAX bytes.
 */
static const char *find_program(const char *name, const char *path, char *room) {
    if (strchr(name, '/')) return name;
    str rest = str_c(path);
    str folder;
    while (rest.len > 0 && name[0] != '\0') {
        if (!str_split(rest, ':', &folder, &rest)) rest = STR_NONE;
        if (folder.len == 0 || folder.ptr[0] != '/') continue;
        int n = snprintf(room, PATH_MAX, "%.*s/%s", STR_ARG(folder), name);
        if (n < PATH_MAX && is_program(room)) return room;
    }
    return NULL;
}

static void spawn_fail(struct spawn *s, enum spawn_stage stage, int error) {
    s->stage = stage;
    s->error = error != 0 ? error : EIO;
}

static int pidfd_of(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

static void spawn_child(struct spawn *s, int in, int out, int err) {
    char room[PATH_MAX];
    const char *file = find_program(s->argv[0], s->path, room);
    if (!file) {
        spawn_fail(s, SPAWN_FIND, ENOENT);
        return;
    }
    struct child c = {.file = file,
                      .cwd = s->cwd,
                      .argv = s->argv,
                      .envp = s->envp,
                      .in = in,
                      .out = out,
                      .err = err,
                      .parent = getpid()};
    sigset_t all;
    sigset_t before; /* a handler of ours must not run in the child, on our memory */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = child_start(&c);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) {
        spawn_fail(s, SPAWN_FORK, error);
    } else if (c.error != 0) {
        spawn_fail(s, c.stage, c.error);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    } else {
        s->pid = pid;
        s->pidfd = s->no_pidfd ? -1 : pidfd_of(pid);
    }
}

/* For the sweep, which leaves a workspace alone that it cannot tell the run of: so a failure here
 * is none of the step. No link that an earlier step made is followed. */
static void workspace_name(const struct spawn *s) {
    int flags = O_NOFOLLOW | O_CLOEXEC;
    int top = open(s->workspace, O_RDONLY | O_DIRECTORY | flags);
    if (top >= 0) (void)mkdirat(top, WORKSPACE_OWN, 0700);
    int own = top >= 0 ? openat(top, WORKSPACE_OWN, O_RDONLY | O_DIRECTORY | flags) : -1;
    int file = own >= 0 ? openat(own, WORKSPACE_RUN,
                                 O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | flags, 0600)
                        : -1;
    ssize_t n = file >= 0 ? write(file, s->workspace_run.ptr, s->workspace_run.len) : 0;
    UNUSED(n); /* half an id is none: its hash is not the name */
    fd_close(&file);
    fd_close(&own);
    fd_close(&top);
}

void spawn_now(struct spawn *s) {
    s->error = 0;
    s->pid = -1;
    s->pidfd = s->out = s->err = -1;
    int in = -1;
    int out = -1;
    int err = -1;
    if (mkdir(s->workspace, 0700) != 0 && errno != EEXIST) {
        spawn_fail(s, SPAWN_FOLDER, errno);
        return;
    }
    if (s->workspace_run.ptr) workspace_name(s);
    in = input_make(s->input);
    if (in < 0 || !pipe_make(&s->out, &out) || !pipe_make(&s->err, &err))
        spawn_fail(s, SPAWN_PREPARE, errno);
    else
        spawn_child(s, in, out, err);
    fd_close(&in);
    fd_close(&out);
    fd_close(&err);
    if (s->error == 0) return;
    fd_close(&s->out);
    fd_close(&s->err);
}

/* ---- the threads ---- */

struct queue_of_spawns {
    struct spawn *first, **last;
};

struct spawner {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct queue_of_spawns todo, ready;
    int busy; /* threads with a spawn in hand */
    bool stopped, ended;
    void (*notify)(void *context);
    void *context;
    pthread_t threads[SPAWN_THREADS];
    int thread_count;
};

static void queue_put(struct queue_of_spawns *q, struct spawn *s) {
    s->next = NULL;
    *q->last = s;
    q->last = &s->next;
}

static struct spawn *queue_take(struct queue_of_spawns *q) {
    struct spawn *s = q->first;
    if (!s) return NULL;
    q->first = s->next;
    if (!q->first) q->last = &q->first;
    return s;
}

static void *thread_main(void *arg) {
    struct spawner *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->ended) {
        struct spawn *spawn = queue_take(&s->todo);
        if (!spawn) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        bool stopped = s->stopped;
        s->busy++;
        pthread_mutex_unlock(&s->lock);
        if (stopped)
            spawn_fail(spawn, SPAWN_PREPARE, ECANCELED);
        else
            spawn_now(spawn);
        pthread_mutex_lock(&s->lock);
        queue_put(&s->ready, spawn);
        s->busy--;
        pthread_cond_broadcast(&s->idle);
        s->notify(s->context);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* All signals blocked: they are for the threads that expect them. */
static int threads_start(struct spawner *s) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (error == 0 && s->thread_count < SPAWN_THREADS) {
        error = pthread_create(&s->threads[s->thread_count], NULL, thread_main, s);
        if (error == 0) s->thread_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s->thread_count > 0 ? 0 : error;
}

status spawner_open(void (*notify)(void *context), void *context, struct spawner **out,
                    struct error *err) {
    struct spawner *s = mem_alloc(sizeof *s);
    if (!s) return error_set(err, ST_RETRY, "could not start threads: out of memory");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->idle, NULL);
    s->todo.last = &s->todo.first;
    s->ready.last = &s->ready.first;
    s->notify = notify;
    s->context = context;
    int error = threads_start(s);
    if (error != 0) {
        spawner_close(s);
        char text[128];
        return error_set(err, ST_RETRY, "could not start threads: %s",
                         strerror_r(error, text, sizeof text));
    }
    *out = s;
    return ST_OK;
}

void spawner_close(struct spawner *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->thread_count; i++)
        pthread_join(s->threads[i], NULL);
    ASSERT(!s->todo.first && !s->ready.first);
    pthread_cond_destroy(&s->idle);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

void spawner_stop(struct spawner *s) {
    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    while (s->busy > 0 || s->todo.first)
        pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void spawner_put(struct spawner *s, struct spawn *spawn) {
    pthread_mutex_lock(&s->lock);
    queue_put(&s->todo, spawn);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

struct spawn *spawner_take(struct spawner *s) {
    pthread_mutex_lock(&s->lock);
    struct spawn *spawn = queue_take(&s->ready);
    pthread_mutex_unlock(&s->lock);
    return spawn;
}
