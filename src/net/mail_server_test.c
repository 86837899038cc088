#include "net/mail_server_test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "test.h"

enum { FILE_BYTES_MAX = 4 << 20 };

struct mail_server {
    pid_t pid;
    int input; /* its; closed, it ends */
    char folder[256], url[64], ca[300];
};

static void run(const struct mail_server *s, const char *words, int input, int output) {
    char text[32];
    (void)snprintf(text, sizeof text, "%s", words);
    char *second = strchr(text, ' ');
    if (second) *second++ = 0;
    (void)dup2(input, 0);
    (void)dup2(output, 1);
    /* Debian's own: another one does not see Debian's modules. */
    execl("/usr/bin/python3", "python3", "tests/mail/server.py", s->folder, text, second,
          (char *)NULL);
    _exit(127);
}

struct mail_server *mail_server_open(const char *words) {
    struct mail_server *s = calloc(1, sizeof *s);
    int in[2];
    int out[2];
    CHECK(s != NULL && pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    CHECK(access("tests/mail/server.py", R_OK) == 0, "run the tests from the top of the repository");
    (void)snprintf(s->folder, sizeof s->folder, "%s/mails", test_dir());
    CHECK(mkdir(s->folder, 0700) == 0);
    s->pid = fork();
    CHECK(s->pid >= 0);
    if (s->pid == 0) run(s, words, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    s->input = in[1];
    char line[32] = "";
    size_t len = 0;
    for (ssize_t n; len < sizeof line - 1 && !strchr(line, '\n') &&
                    (n = read(out[0], line + len, sizeof line - 1 - len)) > 0;)
        len += (size_t)n;
    close(out[0]);
    str rest = str_c(line);
    int64_t port = 0;
    bool missing = str_starts(rest, STR("missing")) || access("/usr/bin/python3", X_OK) != 0;
    if (missing) {
        mail_server_close(s);
        test_skip("python3-aiosmtpd is not installed");
    }
    CHECK(str_take_int(&rest, &port), "the mail server does not start");
    (void)snprintf(s->url, sizeof s->url, "smtp://127.0.0.1:%d", (int)port);
    (void)snprintf(s->ca, sizeof s->ca, "%s/tls.crt", s->folder);
    return s;
}

void mail_server_close(struct mail_server *s) {
    close(s->input);
    (void)waitpid(s->pid, NULL, 0);
    free(s);
}

const char *mail_server_url(const struct mail_server *s) { return s->url; }

str mail_server_ca(const struct mail_server *s) { return str_c(s->ca); }

static void path_of(const struct mail_server *s, int n, char out[320]) {
    (void)snprintf(out, 320, "%s/%d.json", s->folder, n);
}

int mail_server_count(const struct mail_server *s) {
    int n = 0;
    char path[320];
    do {
        path_of(s, ++n, path);
    } while (access(path, F_OK) == 0);
    return n - 1;
}

yyjson_val *mail_server_mail(const struct mail_server *s, int n, struct arena *arena) {
    char path[320];
    path_of(s, n, path);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL, "there is no mail %d", n);
    char *text = arena_alloc(arena, FILE_BYTES_MAX);
    size_t len = fread(text, 1, FILE_BYTES_MAX, file);
    (void)fclose(file);
    yyjson_val *root = NULL;
    struct error err = {0};
    struct json_limits limits = {FILE_BYTES_MAX, 16};
    CHECK(json_parse(str_n(text, len), limits, arena, &root, &err) == ST_OK, "%s", err.msg);
    return root;
}
