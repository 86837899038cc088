/* outbox/email.c: SEND_EMAIL: a mail that the payload describes, by SMTP.
 *
 * {"to", "cc", "bcc", "from", "reply_to", "subject", "body_html", "body_text", "idempotency_key"}:
 * `to` and one of the bodies must be there; html and text together are alternatives. The same
 * effect always makes the same mail, but for its date: the Message-ID comes from the tenant and the
 * key, so that a mail which is sent twice can be told by any mail program; X-Idempotency-Key has
 * the key.
 *
 * SMTP has no such key, so the memory of what was sent is ours: an effect that comes again because
 * its end could not be recorded in time (the store was away, its lease ran out) is answered without
 * a second mail. It ends with the process: between a mail and the record of it there is one commit,
 * and a memory on disk would need one of its own. */
#include "base/json_out.h"
#include "base/limits.h"
#include "outbox/impl.h"
#include "outbox/mime.h"

#define MESSAGE_BYTES_MAX (8 * EVENT_BYTES_MAX) /* quoted-printable makes three bytes of one */

struct addresses {
    struct mime_address *list;
    size_t count;
};
struct email {
    struct mime_address from, reply_to;
    struct addresses to, cc, bcc;
    str subject, html, text;
};

/* ---- the payload ---- */

static bool not_an_address(struct parcel *p, const char *member) {
    return parcel_fail(p, REASON_PAYLOAD_INVALID,
                       "payload: \"%s\" has something else than an address in it, such as "
                       "a@example.com or Name <a@example.com>",
                       member);
}

static bool take_addresses(struct parcel *p, const char *member, struct addresses *out) {
    yyjson_val *given = json_member(p->payload, member);
    size_t n = yyjson_arr_size(given);
    if ((given && !yyjson_is_arr(given)) || n > MAIL_RECIPIENTS_MAX)
        return parcel_fail(p, REASON_PAYLOAD_INVALID,
                           "payload: \"%s\" is not an array of at most %d addresses", member,
                           MAIL_RECIPIENTS_MAX);
    out->list = arena_try(&p->arena, (n + 1) * sizeof *out->list);
    if (!out->list) return parcel_no_memory(p);
    size_t i;
    yyjson_val *one;
    yyjson_arr_foreach(given, i, n, one) {
        str text;
        if (!json_str(one, &text) || !mime_address(text, &p->arena, &out->list[i]))
            return not_an_address(p, member);
        out->count++;
    }
    return true;
}

static bool take_recipients(struct parcel *p, struct email *e) {
    if (!take_addresses(p, "to", &e->to) || !take_addresses(p, "cc", &e->cc) ||
        !take_addresses(p, "bcc", &e->bcc))
        return false;
    if (e->to.count == 0) return parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: \"to\" is empty");
    if (e->to.count + e->cc.count + e->bcc.count <= MAIL_RECIPIENTS_MAX) return true;
    return parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: a mail has at most %d recipients",
                       MAIL_RECIPIENTS_MAX);
}

static bool take_sender(struct parcel *p, struct email *e) {
    str from;
    str reply_to;
    if (!parcel_text(p, "from", false, &from) || !parcel_text(p, "reply_to", false, &reply_to))
        return false;
    if (reply_to.ptr && !mime_address(reply_to, &p->arena, &e->reply_to))
        return not_an_address(p, "reply_to");
    if (!from.ptr) from = p->deliverer->options.smtp_from;
    if (!from.ptr)
        return parcel_fail(p, REASON_PAYLOAD_INVALID,
                           "payload: \"from\" is missing, and there is no usual sender");
    return mime_address(from, &p->arena, &e->from) || not_an_address(p, "from");
}

static bool take_email(struct parcel *p, struct email *e) {
    static const char *const members[] = {"to",        "cc",        "bcc",
                                          "from",      "reply_to",  "subject",
                                          "body_html", "body_text", "idempotency_key",
                                          NULL};
    if (!parcel_members(p, members) || !take_recipients(p, e) || !take_sender(p, e) ||
        !parcel_text(p, "subject", true, &e->subject) ||
        !parcel_text(p, "body_html", false, &e->html) ||
        !parcel_text(p, "body_text", false, &e->text))
        return false;
    if (!mime_is_header(e->subject))
        return parcel_fail(p, REASON_PAYLOAD_INVALID,
                           "payload: \"subject\" has a control character in it, or is too long");
    if (!mime_is_header(p->delivery->key))
        return parcel_fail(p, REASON_PAYLOAD_INVALID,
                           "the idempotency key cannot stand in a header");
    return e->html.ptr || e->text.ptr ||
           parcel_fail(p, REASON_PAYLOAD_INVALID,
                       "payload: neither \"body_html\" nor \"body_text\" is there");
}

/* ---- the mail ---- */

/* The hash of the key and its tenant: a key has no line end in it, so no two pairs are one text. */
static bool hash_key(struct parcel *p, char hex[SHA256_HEX_LEN]) {
    struct buf text;
    buf_init(&text, p->delivery->tenant_id.len + p->delivery->key.len + 1);
    buf_put(&text, p->delivery->tenant_id);
    buf_put_char(&text, '\n');
    buf_put(&text, p->delivery->key);
    sha256_of(buf_str(&text), p->key_hash);
    hex_encode(p->key_hash, sizeof p->key_hash, hex);
    bool ok = !text.full;
    buf_release(&text);
    return ok || parcel_no_memory(p);
}

static bool message_id(struct parcel *p, const char hex[SHA256_HEX_LEN], str domain) {
    char text[SHA256_HEX_LEN + MAIL_ADDRESS_MAX + 4];
    (void)snprintf(text, sizeof text, "<%.*s@%.*s>", SHA256_HEX_LEN, hex, STR_ARG(domain));
    return arena_try_str(&p->arena, str_c(text), &p->message_id) || parcel_no_memory(p);
}

/* What the encodings of the parts cannot hold ends them. */
static void put_alternatives(struct buf *b, const struct email *e, const char *hex) {
    char boundary[48];
    (void)snprintf(boundary, sizeof boundary, "=_cairn_%.32s", hex);
    buf_printf(b, "Content-Type: multipart/alternative;\r\n boundary=\"%s\"\r\n\r\n--%s\r\n",
               boundary, boundary);
    mime_put_part(b, "text/plain", e->text);
    buf_printf(b, "\r\n--%s\r\n", boundary);
    mime_put_part(b, "text/html", e->html);
    buf_printf(b, "\r\n--%s--\r\n", boundary);
}

static void put_message(struct parcel *p, const struct email *e, const char *hex, struct buf *b) {
    mime_put_date(b, p->delivery->now_us / 1000000);
    mime_put_addresses(b, "From", &e->from, 1);
    mime_put_addresses(b, "To", e->to.list, e->to.count);
    if (e->cc.count > 0) mime_put_addresses(b, "Cc", e->cc.list, e->cc.count);
    if (e->reply_to.address.ptr) mime_put_addresses(b, "Reply-To", &e->reply_to, 1);
    mime_put_text(b, "Subject", e->subject);
    buf_printf(b, "Message-ID: %.*s\r\n", STR_ARG(p->message_id));
    mime_put_text(b, "X-Idempotency-Key", p->delivery->key);
    buf_put_c(b, "MIME-Version: 1.0\r\n");
    if (e->html.ptr && e->text.ptr)
        put_alternatives(b, e, hex);
    else
        mime_put_part(b, e->html.ptr ? "text/html" : "text/plain", e->html.ptr ? e->html : e->text);
}

/* ---- what was sent ---- */

static bool was_sent(const struct sent_mails *sent, const uint8_t hash[SHA256_LEN]) {
    for (size_t i = 0; i < sent->count; i++) {
        if (memcmp(sent->hashes[i], hash, SHA256_LEN) == 0) return true;
    }
    return false;
}

/* Without memory the mail is sent all the same: it may then be sent twice, but never not at all. */
static void remember(struct sent_mails *sent, const uint8_t hash[SHA256_LEN]) {
    if (!sent->hashes) sent->hashes = mem_alloc(SENT_MAILS_MAX * sizeof *sent->hashes);
    if (!sent->hashes) return;
    memcpy(sent->hashes[sent->next], hash, SHA256_LEN);
    sent->next = (sent->next + 1) % SENT_MAILS_MAX;
    if (sent->count < SENT_MAILS_MAX) sent->count++;
}

/* ---- sending ---- */

static void answer_error(struct parcel *p, const struct error *err) {
    static const enum reason codes[] = {REASON_SMTP_TIMEOUT, REASON_SMTP_REJECTED};
    enum reason code = REASON_SMTP_FAILED;
    for (size_t i = 0; i < COUNT_OF(codes); i++) {
        if (err->reason == codes[i]) code = codes[i];
    }
    (void)parcel_fail(p, code, "%s", err->msg);
}

static void answer_sent(struct parcel *p) {
    buf_init(&p->result, DELIVERY_RESULT_MAX);
    json_object_begin(&p->result);
    json_put_text(&p->result, "message_id", p->message_id);
    json_put_int(&p->result, "accepted", (int64_t)p->accepted);
    json_object_end(&p->result);
    parcel_done(p);
}

static void on_done(void *context, status st, const struct error *err) {
    struct parcel *p = context;
    p->mail = NULL;
    if (st != ST_OK) {
        answer_error(p, err);
        return;
    }
    remember(&p->deliverer->sent, p->key_hash);
    answer_sent(p);
}

static bool envelope(struct parcel *p, const struct email *e, struct mail *mail) {
    const struct addresses *lists[] = {&e->to, &e->cc, &e->bcc};
    str *all = arena_try(&p->arena, MAIL_RECIPIENTS_MAX * sizeof *all);
    if (!all) return parcel_no_memory(p);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        for (size_t k = 0; k < lists[i]->count; k++)
            all[mail->to_count++] = lists[i]->list[k].address;
    }
    mail->to = all;
    mail->from = e->from.address;
    p->accepted = mail->to_count;
    return true;
}

static void send_mail(struct parcel *p, struct mail *mail) {
    struct deliverer *d = p->deliverer;
    const struct deliverer_options *o = &d->options;
    struct error err = {0};
    mail->url = o->smtp_url;
    mail->plain = o->smtp_plain;
    mail->ca_file = o->ca_file;
    mail->timeout_ms = o->timeout_ms;
    if (o->smtp_user.ptr) {
        mail->user = o->smtp_user;
        mail->password = STR("");
        if (o->smtp_password_secret.ptr &&
            !parcel_secret(p, o->smtp_password_secret, &mail->password))
            return;
    }
    status st = d->mailer ? ST_OK : mailer_open(d->loop, &d->mailer, &err);
    if (st == ST_OK) st = mailer_send(d->mailer, mail, on_done, p, &p->mail, &err);
    if (st == ST_OK) return;
    p->mail = NULL;
    answer_error(p, &err);
}

void email_begin(struct parcel *p) {
    struct email e = {0};
    struct mail mail = {0};
    char hex[SHA256_HEX_LEN];
    if (!p->deliverer->options.smtp_url.ptr) {
        (void)parcel_fail(p, REASON_SMTP_NOT_CONFIGURED, "there is no mail server");
        return;
    }
    if (!take_email(p, &e) || !hash_key(p, hex) || !message_id(p, hex, e.from.domain) ||
        !envelope(p, &e, &mail))
        return;
    if (was_sent(&p->deliverer->sent, p->key_hash)) {
        answer_sent(p);
        return;
    }
    struct buf message;
    buf_init(&message, MESSAGE_BYTES_MAX);
    put_message(p, &e, hex, &message);
    mail.message = buf_str(&message);
    if (message.full)
        (void)parcel_no_memory(p);
    else
        send_mail(p, &mail);
    buf_release(&message);
}
