/* tests/fuzz/replay_main.c: gives every file of the named corpus folders to a fuzz target, without
 * libFuzzer, so that `make test` repeats with gcc and each sanitizer what the fuzzer once found. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int files, failed;

static void replay_file(const char *path, size_t size) {
    /* Exactly as long as the input, so that AddressSanitizer sees a read past its end. */
    uint8_t *data = malloc(size > 0 ? size : 1);
    FILE *file = fopen(path, "rb");
    files++;
    if (data == NULL || file == NULL || fread(data, 1, size, file) != size) {
        fprintf(stderr, "could not read \"%s\": %s\n", path, strerror(errno));
        failed++;
    } else {
        LLVMFuzzerTestOneInput(data, size); /* a finding ends the program */
    }
    if (file != NULL) fclose(file);
    free(data);
}

static void replay_dir(const char *dir) {
    struct dirent **names = NULL;
    int n = scandir(dir, &names, NULL, alphasort);
    if (n < 0) {
        fprintf(stderr, "could not open corpus \"%s\": %s\n", dir, strerror(errno));
        failed++;
        return;
    }
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct stat st;
        int len = snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        free(names[i]);
        if (len < 0 || (size_t)len >= sizeof path || stat(path, &st) != 0) {
            fprintf(stderr, "could not look at \"%s\"\n", path);
            failed++;
        } else if (S_ISREG(st.st_mode)) {
            replay_file(path, (size_t)st.st_size);
        }
    }
    free(names);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        replay_dir(argv[i]);
    if (files == 0) {
        fprintf(stderr, "usage: %s CORPUS..., folders with at least one file\n", argv[0]);
        failed++;
    }
    const char *name = strrchr(argv[0], '/');
    printf("fuzz %s: %d passed, %d failed, 0 skipped\n", name != NULL ? name + 1 : argv[0],
           files > failed ? files - failed : 0, failed);
    return failed > 0 ? 1 : 0;
}
