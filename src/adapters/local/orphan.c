/* adapters/local/orphan.c: what a step had started when its engine was killed.
 *
 * The step's own process dies with the engine (PR_SET_PDEATHSIG); what that one had started does
 * not. Its environment still names the workspace and the engine, so it can be found. */
#include "adapters/local/orphan.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "adapters/local/local.h"

enum { ENVIRON_BYTES_MAX = 1024 * 1024, STAT_BYTES_MAX = 1024 };

/* Reads at most `size` bytes of /proc/PID/NAME; 0: there is nothing, or it is not ours to see. */
static size_t proc_read(int64_t pid, const char *name, char *out, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/%s", (long long)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    size_t len = 0;
    for (ssize_t n = 1; n > 0 && len<size; len += n> 0 ? (size_t)n : 0)
        n = read(fd, out + len, size - len);
    close(fd);
    return len;
}

/* The start time of a process in clock ticks since boot; -1 if it does not live (any more). */
static int64_t start_time(int64_t pid) {
    char text[STAT_BYTES_MAX];
    str rest = str_n(text, proc_read(pid, "stat", text, sizeof text));
    /* pid (any name, also with blanks and brackets) state ppid ... */
    size_t name_end = rest.len;
    while (name_end > 0 && rest.ptr[name_end - 1] != ')')
        name_end--;
    if (name_end == 0 || name_end + 2 > rest.len) return -1;
    rest = str_from(rest, name_end + 1);
    str field = STR_NONE;
    for (int i = 3; i <= 22; i++) { /* the numbers of proc(5) */
        if (!str_split(rest, ' ', &field, &rest)) return -1;
        if (i == 3 && (str_eq(field, STR("Z")) || str_eq(field, STR("X")))) return -1;
    }
    int64_t ticks;
    return str_to_int(field, &ticks) ? ticks : -1;
}

void engine_text(char out[ENGINE_TEXT_MAX]) {
    long long pid = (long long)getpid();
    snprintf(out, ENGINE_TEXT_MAX, "%lld:%lld", pid, (long long)start_time(pid));
}

static bool engine_lives(str engine) {
    str pid_text;
    str start_text;
    int64_t pid;
    int64_t start;
    if (!str_split(engine, ':', &pid_text, &start_text)) return true; /* not of our making */
    if (!str_to_int(pid_text, &pid) || !str_to_int(start_text, &start)) return true;
    return start_time(pid) == start;
}

static str environ_get(str environ_text, str name) {
    for (str rest = environ_text, item; rest.len > 0;) {
        if (!str_split(rest, '\0', &item, &rest)) rest = STR_NONE;
        if (item.len > name.len && item.ptr[name.len] == '=' && str_starts(item, name))
            return str_from(item, name.len + 1);
    }
    return STR_NONE;
}

/* A pid means something in its own namespace only. */
static bool same_namespace(int64_t pid) {
    char path[64];
    struct stat ours;
    struct stat theirs;
    snprintf(path, sizeof path, "/proc/%lld/ns/pid", (long long)pid);
    return stat("/proc/self/ns/pid", &ours) == 0 && stat(path, &theirs) == 0 &&
           ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

static bool is_orphan(int64_t pid, str work_prefix, char *room) {
    str text = str_n(room, proc_read(pid, "environ", room, ENVIRON_BYTES_MAX));
    str workspace = environ_get(text, STR("CAIRN_WORKSPACE"));
    str engine = environ_get(text, STR("CAIRN_ENGINE"));
    return engine.ptr && str_starts(workspace, work_prefix) && !engine_lives(engine) &&
           same_namespace(pid);
}

/* The pidfd is taken before the look: should the number be given to another process meanwhile, it
 * is not that one that gets the signal. */
static bool kill_orphan(int64_t pid, str work_prefix, char *room) {
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    bool killed = false;
    if (is_orphan(pid, work_prefix, room)) {
        killed = fd >= 0 ? syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) == 0
                         : kill((pid_t)pid, SIGKILL) == 0;
    }
    if (fd >= 0) close(fd);
    return killed;
}

int local_kill_orphans(str data_dir) {
    char given[PATH_MAX];
    char real[PATH_MAX];
    char prefix[PATH_MAX + 8];
    if (data_dir.len >= sizeof given) return 0;
    snprintf(given, sizeof given, "%.*s", STR_ARG(data_dir));
    if (!realpath(given, real)) return 0; /* no folder, no steps */
    int n = snprintf(prefix, sizeof prefix, "%s/work/", real);
    char *room = mem_alloc(ENVIRON_BYTES_MAX);
    DIR *proc = room ? opendir("/proc") : NULL;
    int killed = 0;
    while (proc) {
        const struct dirent *entry = readdir(proc);
        if (!entry) break;
        int64_t pid;
        if (!str_to_int(str_c(entry->d_name), &pid) || pid == (int64_t)getpid()) continue;
        if (kill_orphan(pid, str_n(prefix, (size_t)n), room)) killed++;
    }
    if (proc) closedir(proc);
    mem_free(room);
    return killed;
}
