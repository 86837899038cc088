/* net/mail.c: see the header.
 *
 * libcurl's SMTP waits for the answer to a mail's last line, and to QUIT, inside calls that should
 * only have looked; and a transfer that is taken out of a multi handle ends its mail where it is,
 * so that the server takes a part of it for the whole. On a loop neither will do. So each mail has
 * a thread for as long as it takes, a few at a time. The thread owns the call until it has put it
 * among the ended ones; a cancelled call is aborted by libcurl's own means, within a second. */
#include "net/mail.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/time.h"
#include "net/libcurl.h"

enum {
    REPLY_BYTES_MAX = 160,
    MAIL_TIMEOUT_MS_MAX = INT32_MAX,
    STACK_BYTES = 512 * 1024, /* TLS, and the look-up of a name */
};

struct mail_call {
    struct mailer *mailer;
    struct mail_call *next, *prev; /* among those that wait, or those that run */
    struct mail_call *next_ended;
    bool is_running;
    mail_done done;
    void *context;
    atomic_bool cancelled; /* `done` will not be called */
    int64_t end_ns;        /* of its time, waiting included */
    pthread_t thread;
    CURL *easy;
    struct curl_slist *to;
    char *message;
    size_t message_len, sent;
    CURLcode setup; /* the first option that failed */
    bool quits;     /* all is said, but for the answer to QUIT */
    char shown[MAIL_URL_MAX + 1];
    char reply[REPLY_BYTES_MAX + 1]; /* the newest line of the server */
    char detail[CURL_ERROR_SIZE];
    status st;
    struct error err;
};
struct calls { /* oldest first */
    struct mail_call *first, *last;
    size_t count;
};
struct mailer {
    uv_async_t async;
    struct calls waiting, running;
    bool closing;
    pthread_mutex_t lock;    /* guards the next one */
    struct mail_call *ended; /* their threads have nothing more to do */
};

/* ---- what libcurl asks us ---- */

static size_t give_message(char *room, size_t size, size_t count, void *context) {
    struct mail_call *call = context;
    size_t n = call->message_len - call->sent;
    if (n > size * count) n = size * count;
    memcpy(room, call->message + call->sent, n);
    call->sent += n;
    return n;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): libcurl's type */
static size_t take_reply(char *bytes, size_t size, size_t count, void *context) {
    struct mail_call *call = context;
    size_t n = 0;
    for (size_t i = 0; i < size * count && n < REPLY_BYTES_MAX; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\r' || c == '\n') break;
        if (c < ' ' || c == 0x7f)
            call->reply[n++] = '?';
        else
            call->reply[n++] = bytes[i];
    }
    call->reply[n] = 0;
    return size * count;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): likewise */
static size_t drop(char *bytes, size_t size, size_t count, void *context) {
    UNUSED(bytes);
    UNUSED(context);
    return size * count;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): likewise */
static int on_talk(CURL *easy, curl_infotype type, char *bytes, size_t len, void *context) {
    struct mail_call *call = context;
    UNUSED(easy);
    if (type == CURLINFO_HEADER_OUT && str_starts(str_n(bytes, len), STR("QUIT")))
        call->quits = true;
    return 0;
}

/* libcurl calls it about once a second. By then a server has said goodbye, or never will. */
static int on_time(void *context, curl_off_t total, curl_off_t now, curl_off_t up_total,
                   curl_off_t up_now) {
    struct mail_call *call = context;
    UNUSED(total);
    UNUSED(now);
    UNUSED(up_total);
    UNUSED(up_now);
    return call->quits || atomic_load(&call->cancelled);
}

/* ---- setting up ---- */

static status bad_mail(struct error *err, const char *why) {
    return error_at(err, REASON_SMTP_REQUEST_INVALID, "", "mail: %s", why);
}

static status no_memory(struct error *err) {
    return error_at(err, REASON_SMTP_FAILED, "", "mail: out of memory");
}

static bool is_visible(str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] <= ' ' || s.ptr[i] > '~') return false;
    }
    return s.len > 0;
}

static void set_long(struct mail_call *call, CURLoption option, long value) {
    if (call->setup == CURLE_OK) call->setup = curl->curl_easy_setopt(call->easy, option, value);
}

static void set_ptr(struct mail_call *call, CURLoption option, const void *value) {
    if (call->setup == CURLE_OK) call->setup = curl->curl_easy_setopt(call->easy, option, value);
}

/* libcurl copies the text. */
static void set_text(struct mail_call *call, CURLoption option, str value) {
    if (!value.ptr) return;
    char *text = mem_alloc(value.len + 1);
    if (text) memcpy(text, value.ptr, value.len);
    if (text)
        set_ptr(call, option, text);
    else
        call->setup = CURLE_OUT_OF_MEMORY;
    mem_free(text);
}

static status set_address(struct mail_call *call, str address, bool sender, struct error *err) {
    char text[MAIL_ADDRESS_MAX + 3];
    if (!is_visible(address) || address.len > MAIL_ADDRESS_MAX || str_has(address, '<') ||
        str_has(address, '>'))
        return bad_mail(err, "an address is empty, too long, or has characters that none can have");
    (void)snprintf(text, sizeof text, "<%.*s>", STR_ARG(address));
    if (sender) {
        set_ptr(call, CURLOPT_MAIL_FROM, text);
        return ST_OK;
    }
    struct curl_slist *longer = curl->curl_slist_append(call->to, text);
    if (!longer) return no_memory(err);
    call->to = longer;
    return ST_OK;
}

static status set_addresses(struct mail_call *call, const struct mail *mail, struct error *err) {
    if (mail->to_count == 0 || mail->to_count > MAIL_RECIPIENTS_MAX)
        return bad_mail(err, "it has no recipient, or too many");
    status st = set_address(call, mail->from, true, err);
    for (size_t i = 0; i < mail->to_count && st == ST_OK; i++)
        st = set_address(call, mail->to[i], false, err);
    set_ptr(call, CURLOPT_MAIL_RCPT, call->to);
    return st;
}

static status set_server(struct mail_call *call, const struct mail *mail, struct error *err) {
    bool smtps = str_starts(mail->url, STR("smtps://"));
    if (!smtps && !str_starts(mail->url, STR("smtp://")))
        return bad_mail(err, "the URL of its server is neither smtp nor smtps");
    if (!is_visible(mail->url) || mail->url.len > MAIL_URL_MAX)
        return bad_mail(err, "the URL of its server is too long, or has a character that none has");
    (void)snprintf(call->shown, sizeof call->shown, "%.*s", STR_ARG(mail->url));
    set_ptr(call, CURLOPT_URL, call->shown);
    set_ptr(call, CURLOPT_PROTOCOLS_STR, "smtp,smtps");
    set_long(call, CURLOPT_DISALLOW_USERNAME_IN_URL, 1);
    set_long(call, CURLOPT_USE_SSL, mail->plain ? (long)CURLUSESSL_TRY : (long)CURLUSESSL_ALL);
    set_text(call, CURLOPT_USERNAME, mail->user);
    set_text(call, CURLOPT_PASSWORD, mail->password);
    set_text(call, CURLOPT_CAINFO, mail->ca_file);
    return ST_OK;
}

static void set_safety(struct mail_call *call) {
    set_ptr(call, CURLOPT_PROXY, ""); /* "": not even one from the environment */
    set_ptr(call, CURLOPT_NOPROXY, "*");
    set_long(call, CURLOPT_NETRC, CURL_NETRC_IGNORED);
    set_long(call, CURLOPT_SSL_VERIFYPEER, 1);
    set_long(call, CURLOPT_SSL_VERIFYHOST, 2);
    set_long(call, CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2);
    set_long(call, CURLOPT_NOSIGNAL, 1);
    set_long(call, CURLOPT_FRESH_CONNECT, 1);
    set_long(call, CURLOPT_FORBID_REUSE, 1);
    set_long(call, CURLOPT_UPLOAD, 1);
    set_long(call, CURLOPT_VERBOSE, 1); /* on_talk() hears it, and nobody else */
    set_ptr(call, CURLOPT_ERRORBUFFER, call->detail);
    set_ptr(call, CURLOPT_READDATA, call);
    set_ptr(call, CURLOPT_HEADERDATA, call);
    set_ptr(call, CURLOPT_XFERINFODATA, call);
    set_long(call, CURLOPT_NOPROGRESS, 0);
    set_ptr(call, CURLOPT_DEBUGDATA, call);
    if (call->setup != CURLE_OK) return;
    CURLcode rc = curl->curl_easy_setopt(call->easy, CURLOPT_READFUNCTION, give_message);
    if (!rc) rc = curl->curl_easy_setopt(call->easy, CURLOPT_HEADERFUNCTION, take_reply);
    if (!rc) rc = curl->curl_easy_setopt(call->easy, CURLOPT_WRITEFUNCTION, drop);
    if (!rc) rc = curl->curl_easy_setopt(call->easy, CURLOPT_XFERINFOFUNCTION, on_time);
    if (!rc) rc = curl->curl_easy_setopt(call->easy, CURLOPT_DEBUGFUNCTION, on_talk);
    if (!rc)
        rc = curl->curl_easy_setopt(call->easy, CURLOPT_INFILESIZE_LARGE,
                                    (curl_off_t)call->message_len);
    call->setup = rc;
#if LIBCURL_VERSION_NUM >= 0x075700
    (void)curl->curl_easy_setopt(call->easy, CURLOPT_QUICK_EXIT, 1L); /* as in client.c */
#endif
}

static void call_free(struct mail_call *call) {
    if (call->easy) curl->curl_easy_cleanup(call->easy);
    if (call->to) curl->curl_slist_free_all(call->to);
    mem_free(call->message);
    mem_free(call);
}

static status call_fill(struct mail_call *call, const struct mail *mail, struct error *err) {
    int64_t ms = mail->timeout_ms > 0 ? mail->timeout_ms : MAIL_TIMEOUT_MS;
    if (ms > MAIL_TIMEOUT_MS_MAX) ms = MAIL_TIMEOUT_MS_MAX;
    call->end_ns = clock_mono_ns() + ms * 1000000;
    call->easy = curl->curl_easy_init();
    call->message = mem_alloc(mail->message.len + 1);
    call->message_len = mail->message.len;
    if (!call->easy || !call->message) return no_memory(err);
    memcpy(call->message, mail->message.ptr, mail->message.len);
    set_safety(call);
    set_long(call, CURLOPT_CONNECTTIMEOUT_MS, MAIL_CONNECT_TIMEOUT_MS);
    status st = set_server(call, mail, err);
    if (st == ST_OK) st = set_addresses(call, mail, err);
    if (st == ST_OK && call->setup != CURLE_OK) {
        st = error_at(err, REASON_SMTP_FAILED, "", "could not prepare a mail for \"%s\": %s",
                      call->shown, curl->curl_easy_strerror(call->setup));
    }
    return st;
}

/* ---- results ---- */

/* What went wrong before the server could say anything about the mail. */
static bool is_of_the_connection(CURLcode rc) {
    return rc == CURLE_USE_SSL_FAILED || rc == CURLE_SSL_CONNECT_ERROR ||
           rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE;
}

static status call_result(struct mail_call *call, CURLcode rc, struct error *err) {
    if (rc == CURLE_OK) return ST_OK;
    long code = 0;
    (void)curl->curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &code);
    const char *why = call->detail[0] ? call->detail : curl->curl_easy_strerror(rc);
    if (rc == CURLE_OPERATION_TIMEDOUT) {
        return error_at(err, REASON_SMTP_TIMEOUT, "", "could not send a mail to \"%s\": %s",
                        call->shown, why);
    }
    bool refused = code >= 400 && code <= 599 && !is_of_the_connection(rc);
    if (!refused) {
        return error_at(err, REASON_SMTP_FAILED, "", "could not send a mail to \"%s\": %s",
                        call->shown, why);
    }
    bool for_ever = code >= 500;
    char text[8];
    (void)snprintf(text, sizeof text, "%ld", code);
    const char *said = strncmp(call->reply, text, 3) == 0 ? call->reply + 3 : "";
    return error_as(err, for_ever ? ST_INVALID : ST_RETRY,
                    for_ever ? REASON_SMTP_REJECTED : REASON_SMTP_FAILED, "",
                    "the mail server \"%s\" answered %ld%s", call->shown, code, said);
}

/* ---- the life of a mail ---- */

static void calls_add(struct calls *calls, struct mail_call *call) {
    call->next = NULL;
    call->prev = calls->last;
    if (call->prev)
        call->prev->next = call;
    else
        calls->first = call;
    calls->last = call;
    calls->count++;
}

static void calls_remove(struct calls *calls, struct mail_call *call) {
    if (call->prev)
        call->prev->next = call->next;
    else
        calls->first = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        calls->last = call->prev;
    calls->count--;
}

/* An idle mailer does not keep the loop alive. */
static void keep_loop(struct mailer *mailer) {
    if (mailer->running.count + mailer->waiting.count > 0)
        uv_ref((uv_handle_t *)&mailer->async);
    else
        uv_unref((uv_handle_t *)&mailer->async);
}

static void *thread_main(void *arg) {
    struct mail_call *call = arg;
    struct mailer *mailer = call->mailer;
    call->st = call_result(call, curl->curl_easy_perform(call->easy), &call->err);
    pthread_mutex_lock(&mailer->lock);
    call->next_ended = mailer->ended;
    mailer->ended = call;
    pthread_mutex_unlock(&mailer->lock);
    (void)uv_async_send(&mailer->async); /* the mailer is there until this thread was joined */
    return NULL;
}

static bool thread_start(struct mail_call *call) {
    pthread_attr_t attr;
    sigset_t all;
    sigset_t before;
    if (pthread_attr_init(&attr) != 0) return false;
    sigfillset(&all); /* signals are the loop's; and a closed connection is no reason to die */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = pthread_attr_setstacksize(&attr, STACK_BYTES) == 0 &&
              pthread_create(&call->thread, &attr, thread_main, call) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return ok;
}

/* Gives it a thread. false: call->st and err say why not. */
static bool call_start(struct mail_call *call) {
    int64_t left_ms = (call->end_ns - clock_mono_ns()) / 1000000;
    if (left_ms <= 0) {
        call->st =
            error_at(&call->err, REASON_SMTP_TIMEOUT, "",
                     "could not send a mail to \"%s\": too many others are under way", call->shown);
        return false;
    }
    set_long(call, CURLOPT_TIMEOUT_MS, (long)left_ms);
    if (call->setup != CURLE_OK || !thread_start(call)) {
        call->st = error_at(&call->err, REASON_SMTP_FAILED, "",
                            "could not start a thread for a mail to \"%s\"", call->shown);
        return false;
    }
    call->is_running = true;
    calls_add(&call->mailer->running, call);
    return true;
}

static void call_answer(struct mail_call *call) {
    if (!atomic_load(&call->cancelled))
        call->done(call->context, call->st, call->st == ST_OK ? NULL : &call->err);
    call_free(call);
}

static void on_closed(uv_handle_t *handle) {
    struct mailer *mailer = handle->data;
    pthread_mutex_destroy(&mailer->lock);
    mem_free(mailer);
}

static void on_ended(uv_async_t *async) {
    struct mailer *mailer = async->data;
    pthread_mutex_lock(&mailer->lock);
    struct mail_call *ended = mailer->ended;
    mailer->ended = NULL;
    pthread_mutex_unlock(&mailer->lock);
    while (ended) {
        struct mail_call *call = ended;
        ended = call->next_ended;
        (void)pthread_join(call->thread, NULL);
        calls_remove(&mailer->running, call);
        call_answer(call);
    }
    while (mailer->waiting.first && mailer->running.count < MAIL_THREADS_MAX) {
        struct mail_call *call = mailer->waiting.first;
        calls_remove(&mailer->waiting, call);
        if (!call_start(call)) call_answer(call);
    }
    keep_loop(mailer);
    if (mailer->closing && mailer->running.count == 0 && !uv_is_closing((uv_handle_t *)async))
        uv_close((uv_handle_t *)async, on_closed);
}

status mailer_open(uv_loop_t *loop, struct mailer **out, struct error *err) {
    status st = libcurl_load(err);
    if (st != ST_OK) return st;
    struct mailer *mailer = mem_alloc(sizeof *mailer);
    if (!mailer) return no_memory(err);
    if (pthread_mutex_init(&mailer->lock, NULL) != 0) {
        mem_free(mailer);
        return no_memory(err);
    }
    if (uv_async_init(loop, &mailer->async, on_ended) != 0) {
        pthread_mutex_destroy(&mailer->lock);
        mem_free(mailer);
        return no_memory(err);
    }
    mailer->async.data = mailer;
    keep_loop(mailer);
    *out = mailer;
    return ST_OK;
}

status mailer_send(struct mailer *mailer, const struct mail *mail, mail_done done, void *context,
                   struct mail_call **out, struct error *err) {
    if (mailer->running.count + mailer->waiting.count >= MAILS_MAX) {
        return error_as(err, ST_LIMIT, REASON_SMTP_FAILED, "", "%d mails are under way already",
                        MAILS_MAX);
    }
    struct mail_call *call = mem_alloc(sizeof *call);
    if (!call) return no_memory(err);
    status st = call_fill(call, mail, err);
    if (st != ST_OK) {
        call_free(call);
        return st;
    }
    call->mailer = mailer;
    call->done = done;
    call->context = context;
    if (mailer->running.count >= MAIL_THREADS_MAX) {
        calls_add(&mailer->waiting, call);
    } else if (!call_start(call)) {
        *err = call->err;
        st = call->st;
        call_free(call);
        return st;
    }
    keep_loop(mailer);
    *out = call;
    return ST_OK;
}

void mailer_cancel(struct mail_call *call) {
    struct mailer *mailer = call->mailer;
    if (call->is_running) {
        atomic_store(&call->cancelled, true);
        return;
    }
    calls_remove(&mailer->waiting, call);
    call_free(call);
    keep_loop(mailer);
}

void mailer_close(struct mailer *mailer) {
    if (!mailer) return;
    while (mailer->waiting.first)
        mailer_cancel(mailer->waiting.first);
    for (struct mail_call *call = mailer->running.first; call; call = call->next)
        mailer_cancel(call);
    mailer->closing = true;
    if (mailer->running.count == 0) uv_close((uv_handle_t *)&mailer->async, on_closed);
}
