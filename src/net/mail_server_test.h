/* net/mail_server_test.h: a real SMTP server for tests: Debian's python3-aiosmtpd, as
 * tests/mail/server.py starts it. See there for what it does with which recipients. */
#pragma once

#include <yyjson.h>

#include "base/arena.h"
#include "base/str.h"

struct mail_server;

/* `words`: "", "tls", "auth" or "tls auth". The test is skipped when aiosmtpd is not installed. */
struct mail_server *mail_server_open(const char *words);
void mail_server_close(struct mail_server *server);
const char *mail_server_url(const struct mail_server *server); /* smtp://127.0.0.1:PORT */
str mail_server_ca(const struct mail_server *server);    /* the certificate's file, with "tls" */
int mail_server_count(const struct mail_server *server); /* mails that it took so far */
/* What it wrote of the n-th mail, from 1. */
yyjson_val *mail_server_mail(const struct mail_server *server, int n, struct arena *arena);
