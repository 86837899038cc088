/* cli/main.c: the only main(). */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"

/* A standard descriptor that the parent closed must not become the number of a file we open later:
 * results would be written into it. What stands in for it can be neither read (0) nor written (1,
 * 2), so that its use is an error. */
static void fill_standard_descriptors(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        int opened = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        UNUSED(opened); /* the lowest free number, which is fd */
    }
}

int main(int argc, char **argv) {
    fill_standard_descriptors();
    /* `cairn ... | head` ends quietly, also where the parent ignores the signal. */
    (void)signal(SIGPIPE, SIG_DFL);
    /* Commands return their errors and main prints them: the library's log would tell them twice.
     */
    log_setup(STDERR_FILENO, false, LOG_OFF);
    return cli_main(argc, (const char *const *)argv);
}
