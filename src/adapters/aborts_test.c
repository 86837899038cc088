#include "adapters/aborts_test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

bool test_aborts(void (*func)(void *context), void *context) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        func(context);
        _exit(0);
    }
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child);
    return WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT;
}
