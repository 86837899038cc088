/* base/log.h: structured log lines on stderr, as text for people or as JSON lines for machines: one switch.
 * Fields are name and value pairs; values are strings or int64. Safe from any thread: one write(2) a line. */
#pragma once

#include "base/base.h"
#include "base/str.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_OFF };
struct log_field { const char *name; str text; int64_t number; bool is_number; };
#define LOG_S(name, value) ((struct log_field){(name), (value), 0, false})
#define LOG_N(name, value) ((struct log_field){(name), {NULL, 0}, (value), true})

void log_setup(int fd, bool json, enum log_level at_least); /* default: fd 2, text, LOG_INFO */
void log_write(enum log_level level, const char *msg, const struct log_field *fields, size_t n);
#define LOG(level, msg, ...)                                                                       \
    log_write((level), (msg), (const struct log_field[]){__VA_ARGS__},                             \
              sizeof((const struct log_field[]){__VA_ARGS__}) / sizeof(struct log_field))
