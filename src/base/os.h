/* base/os.h: files and folders, errno translated once. */
#pragma once

#include "base/arena.h"
#include "base/base.h"
#include "base/error.h"
#include "base/str.h"

/* Reads a whole file into the arena; ST_LIMIT when it is longer than bytes_max. */
MUST_CHECK status file_read(str path, size_t bytes_max, struct arena *arena, str *out, struct error *err);
/* Replaces `path` so that after a crash it holds the old bytes or the new, never a mixture. */
MUST_CHECK status file_replace(str path, str bytes, struct error *err);
/* Renames a file that is complete and synced, and syncs the folder. */
MUST_CHECK status file_rename_durable(str from, str to, struct error *err);
/* Makes the folder and its missing parents (mode 0700 for new ones). Fine if it exists. */
MUST_CHECK status dir_make(str path, struct error *err);
bool path_exists(str path);
/* Takes an exclusive lock on a lock file (made if missing), waiting up to wait_ms; writes our pid into it. *fd keeps
 * the lock until closed. ST_RETRY names the pid that holds it. */
MUST_CHECK status lock_take(str path, int64_t wait_ms, int *fd, struct error *err);
void lock_drop(int fd);

/* Buffered reading of lines from a descriptor, in bounded memory. */
struct line_reader;
MUST_CHECK status line_reader_open(int fd, size_t line_max, struct line_reader **out, struct error *err);
void line_reader_close(struct line_reader *r); /* does not close fd */
/* The next line without its "\n" (or "\r\n"), valid until the next call; *eof at the end. A line longer than line_max gives
 * ST_LIMIT once, with its number counted and its rest skipped, and reading can go on. ST_RETRY on a read error. */
MUST_CHECK status line_reader_next(struct line_reader *r, str *line, bool *eof, struct error *err);
/* Reads what the descriptor has now. true: line_reader_next() will answer at once; false: it would wait. */
bool line_reader_ready(struct line_reader *r);
int64_t line_reader_number(const struct line_reader *r);  /* of the last line, from 1 */
int64_t line_reader_offset(const struct line_reader *r);  /* bytes consumed so far */
