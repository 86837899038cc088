/* core/url_guard.c: see the header.
 *
 * Two questions, kept apart. Is the location on the list: scheme, host, port, path, compared as
 * text after one strict parse. And is the address one that nobody may reach, whatever the list
 * says: for literal addresses at once, for names when the socket is about to connect. An IPv6
 * address that carries an IPv4 address (mapped, translated, tunnelled) is as good as what it
 * carries. Where two URL parsers could disagree about the host, the text is refused, not guessed
 * at: the one that fetches is not ours. */
#include "core/url_guard.h"

#include <arpa/inet.h>

enum {
    HOST_BYTES_MAX = 253, /* of a name in the DNS */
    LABEL_BYTES_MAX = 63,
    PORT_MAX = 65535,
};

static const struct scheme {
    str name;
    int port;
    bool network; /* its host is a name or address; else it names a bucket or an account */
} schemes[] = {
    {STR_LIT("https"), 443, true}, {STR_LIT("http"), 80, true},  {STR_LIT("s3"), 0, false},
    {STR_LIT("gs"), 0, false},     {STR_LIT("azure"), 0, false},
};

static const struct scheme *scheme_find(str name) {
    for (size_t i = 0; i < COUNT_OF(schemes); i++) {
        if (str_eq(schemes[i].name, name)) return &schemes[i];
    }
    return NULL;
}

static bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static str lower(str s, struct arena *arena) {
    char *out = arena_alloc(arena, s.len + 1);
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (c >= 'A' && c <= 'Z') c |= 0x20;
        out[i] = c;
    }
    return str_n(out, s.len);
}

static status invalid(struct error *err, const char *why) {
    return error_at(err, REASON_URL_INVALID, "", "not a URL that can be used: %s", why);
}

/* ---- addresses ---- */

enum reach { REACH_PUBLIC, REACH_PRIVATE, REACH_NEVER };
struct range {
    uint8_t start[16];
    int bits;
    enum reach reach;
};

static const struct range ranges4[] = {
    {{0}, 8, REACH_NEVER},                   /* this network; 0.0.0.0 connects to ourselves */
    {{10}, 8, REACH_PRIVATE},                /* private networks, */
    {{100, 100, 100, 200}, 32, REACH_NEVER}, /* metadata: Alibaba */
    {{100, 64}, 10, REACH_PRIVATE},          /* carrier-grade NAT */
    {{127}, 8, REACH_PRIVATE},               /* loopback */
    {{168, 63, 129, 16}, 32, REACH_NEVER},   /* metadata: Azure's wire server */
    {{169, 254}, 16, REACH_NEVER},           /* link-local, and most clouds' metadata */
    {{172, 16}, 12, REACH_PRIVATE},          /* the second */
    {{192, 0, 0}, 24, REACH_NEVER},          /* protocol assignments; metadata: Oracle */
    {{192, 168}, 16, REACH_PRIVATE},         /* and the third */
    {{198, 18}, 15, REACH_PRIVATE},          /* benchmarks of network devices */
    {{224}, 4, REACH_NEVER},                 /* multicast */
    {{240}, 4, REACH_NEVER},                 /* reserved, broadcast */
};
static const struct range ranges6[] = {
    {{[15] = 1}, 128, REACH_PRIVATE},                                 /* ::1 */
    {{0, 0x64, 0xff, 0x9b, 0, 1}, 48, REACH_NEVER},                   /* NAT64 of the site's own */
    {{1}, 64, REACH_NEVER},                                           /* 100::/64, discarded */
    {{0x20, 1, 0, 0}, 32, REACH_NEVER},                               /* Teredo */
    {{0xfd, 0, 0x0e, 0xc2, [14] = 2, [15] = 0x54}, 128, REACH_NEVER}, /* metadata: AWS */
    {{0xfd, 0x20, 0, 0xce, [14] = 2, [15] = 0x54}, 128, REACH_NEVER}, /* metadata: Google */
    {{0xfc}, 7, REACH_PRIVATE},                                       /* unique local */
    {{0xfe, 0x80}, 10, REACH_NEVER},                                  /* link-local */
    {{0xfe, 0xc0}, 10, REACH_PRIVATE},                                /* site-local */
    {{0xff}, 8, REACH_NEVER},                                         /* multicast */
};
/* Where an IPv4 address stands inside an IPv6 one. */
static const struct carrier {
    uint8_t prefix[12];
    int bits, offset;
} carriers[] = {
    {{0}, 96, 12},                        /* ::a.b.c.d, also "::" */
    {{[10] = 0xff, [11] = 0xff}, 96, 12}, /* mapped, ::ffff:a.b.c.d */
    {{[8] = 0xff, [9] = 0xff}, 96, 12},   /* translated, ::ffff:0:a.b.c.d */
    {{0, 0x64, 0xff, 0x9b}, 96, 12},      /* NAT64 */
    {{0x20, 2}, 16, 2},                   /* 6to4 */
};

static bool same_bits(const uint8_t *a, const uint8_t *b, int bits) {
    int whole = bits / 8;
    if (memcmp(a, b, (size_t)whole) != 0) return false;
    int rest = bits % 8;
    return rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

static enum reach reach_in(const struct range *ranges, size_t count, const uint8_t *address) {
    for (size_t i = 0; i < count; i++) { /* the first one decides */
        if (same_bits(address, ranges[i].start, ranges[i].bits)) return ranges[i].reach;
    }
    return REACH_PUBLIC;
}

static enum reach reach_of_ipv4(const uint8_t *address) {
    return reach_in(ranges4, COUNT_OF(ranges4), address);
}

static enum reach reach_of(const uint8_t *address, size_t len) {
    if (len == 4) return reach_of_ipv4(address);
    if (len != 16) return REACH_NEVER;
    enum reach reach = reach_in(ranges6, COUNT_OF(ranges6), address);
    if (reach != REACH_PUBLIC) return reach;
    for (size_t i = 0; i < COUNT_OF(carriers); i++) {
        if (same_bits(address, carriers[i].prefix, carriers[i].bits))
            return reach_of_ipv4(address + carriers[i].offset);
    }
    /* ISATAP: any prefix, then 0:5efe or 200:5efe and the IPv4 address. */
    if ((address[8] & 0xfd) == 0 && address[9] == 0 && address[10] == 0x5e && address[11] == 0xfe)
        return reach_of_ipv4(address + 12);
    return REACH_PUBLIC;
}

bool guard_address(const struct guard *guard, bool exact, const uint8_t *address, size_t len) {
    switch (reach_of(address, len)) {
    case REACH_PUBLIC:
        return true;
    case REACH_PRIVATE:
        return guard->allow_private && exact;
    case REACH_NEVER:
        return false;
    }
    return false;
}

/* ---- hosts ---- */

/* One part of an IPv4 address as C programs have always read it: 10, 012 or 0xa. */
static bool take_number(str part, uint64_t *out) {
    int base = 10;
    if (part.len > 1 && part.ptr[0] == '0') {
        bool hex = part.ptr[1] == 'x' || part.ptr[1] == 'X';
        base = hex ? 16 : 8;
        part = str_from(part, hex ? 2 : 1);
    }
    if (part.len == 0) return false;
    uint64_t n = 0;
    for (size_t i = 0; i < part.len; i++) {
        int digit = hex_value(part.ptr[i]);
        if (digit < 0 || digit >= base) return false;
        n = n * (uint64_t)base + (uint64_t)digit;
        if (n > UINT32_MAX) return false;
    }
    *out = n;
    return true;
}

/* One to four parts; the last one fills all bytes that are left. */
static bool take_ipv4(str host, uint8_t out[4]) {
    uint32_t address = 0;
    for (int i = 0; i < 4; i++) {
        str part;
        uint64_t n = 0;
        bool more = str_split(host, '.', &part, &host);
        if (!take_number(part, &n)) return false;
        if (more && (n > 255 || i == 3)) return false;
        if (!more && n >= (uint64_t)1 << (8 * (4 - i))) return false;
        address |= (uint32_t)n << (more ? 8 * (3 - i) : 0);
        if (!more) break;
    }
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(address >> (8 * (3 - i)));
    return true;
}

/* A name whose last label is a number is an address, or nothing: there is no such domain. */
static bool ends_in_number(str host) {
    size_t at = host.len;
    while (at > 0 && host.ptr[at - 1] != '.')
        at--;
    str label = str_from(host, at);
    bool hex =
        label.len >= 2 && label.ptr[0] == '0' && (label.ptr[1] == 'x' || label.ptr[1] == 'X');
    for (size_t i = hex ? 2 : 0; i < label.len; i++) {
        if (hex ? hex_value(label.ptr[i]) < 0 : !is_digit(label.ptr[i])) return false;
    }
    return label.len > 0;
}

static status check_name(str host, struct error *err) {
    if (host.len == 0) return invalid(err, "it has no host");
    if (host.len > HOST_BYTES_MAX) return invalid(err, "its host is too long");
    size_t label = 0;
    for (size_t i = 0; i < host.len; i++) {
        char c = host.ptr[i];
        if (c == '.') {
            if (label == 0) return invalid(err, "its host has an empty label");
            label = 0;
            continue;
        }
        if (!is_alpha(c) && !is_digit(c) && c != '-' && c != '_')
            return invalid(err, "its host has a character other than letters, digits, - _ .");
        if (++label > LABEL_BYTES_MAX) return invalid(err, "its host has too long a label");
    }
    return label == 0 ? invalid(err, "its host ends in a dot") : ST_OK;
}

static status take_ipv6(str text, struct arena *arena, str *out, struct error *err) {
    char literal[INET6_ADDRSTRLEN] = "";
    uint8_t address[16];
    if (str_has(text, '%')) return invalid(err, "an address with a zone is of use only here");
    if (text.len < sizeof literal) memcpy(literal, text.ptr, text.len);
    if (text.len >= sizeof literal || inet_pton(AF_INET6, literal, address) != 1)
        return invalid(err, "what stands in [] is not an IPv6 address");
    (void)inet_ntop(AF_INET6, address, literal, sizeof literal);
    *out = arena_str(arena, str_c(literal));
    return ST_OK;
}

/* `wildcard`: "*" and "*.name" are fine too. */
static status take_host(str text, bool network, bool wildcard, struct arena *arena, str *out,
                        struct error *err) {
    str name = text;
    if (wildcard && str_eq(text, STR("*"))) {
        *out = STR("*");
        return ST_OK;
    }
    bool below = wildcard && str_starts(text, STR("*."));
    if (below) name = str_from(text, 2);
    status st = check_name(name, err);
    if (st != ST_OK) return st;
    if (!network || !ends_in_number(name)) {
        *out = lower(text, arena);
        return ST_OK;
    }
    uint8_t address[4];
    if (below || !take_ipv4(name, address))
        return invalid(err, "its host looks like an IPv4 address and is none");
    char literal[INET_ADDRSTRLEN];
    (void)inet_ntop(AF_INET, address, literal, sizeof literal);
    *out = arena_str(arena, str_c(literal));
    return ST_OK;
}

/* ---- parsing ---- */

static bool take_scheme(str text, str *scheme, str *rest) {
    if (!str_split(text, ':', scheme, rest) || scheme->len == 0) return false;
    for (size_t i = 0; i < scheme->len; i++) {
        char c = scheme->ptr[i];
        if (is_alpha(c)) continue;
        if (i == 0 || !(is_digit(c) || c == '+' || c == '-' || c == '.')) return false;
    }
    return true;
}

static status check_characters(str text, struct error *err) {
    static const str never = STR_LIT("\\\"<>^`{|}");
    if (text.len > URL_BYTES_MAX) {
        return error_as(err, ST_LIMIT, REASON_URL_INVALID, "",
                        "a URL has %zu bytes, at most %d are used", text.len, URL_BYTES_MAX);
    }
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c <= ' ' || c > '~' || str_has(never, c))
            return invalid(err, "blanks, control characters, backslashes, \" < > ^ ` { | } and all "
                                "that is not ASCII must be written as %XX");
        if (c == '#') return invalid(err, "it has a fragment (#), which no server is told");
        if (c != '%') continue;
        if (text.len - i < 3 || hex_value(text.ptr[i + 1]) < 0 || hex_value(text.ptr[i + 2]) < 0)
            return invalid(err, "a % is not followed by two hexadecimal digits");
    }
    return ST_OK;
}

static status take_port(str text, const struct scheme *scheme, int *out, struct error *err) {
    int64_t n = 0;
    str rest = text;
    if (scheme && !scheme->network) return invalid(err, "a bucket or an account has no port");
    if (text.len > 5 || !str_take_int(&rest, &n) || rest.len > 0 || n < 1 || n > PORT_MAX)
        return invalid(err, "its port is not a number from 1 to 65535");
    *out = (int)n;
    return ST_OK;
}

static status take_authority(str text, bool wildcard, struct arena *arena, struct url *url,
                             struct error *err) {
    const struct scheme *scheme = scheme_find(url->scheme);
    bool network = !scheme || scheme->network;
    str user;
    str host = text;
    url->has_user = str_split(text, '@', &user, &host);
    if (!url->has_user) host = text;
    if (str_has(host, '@')) return invalid(err, "it has more than one @ before the path");
    str port = STR_NONE;
    status st;
    if (str_starts(host, STR("["))) {
        str rest;
        if (!network) return invalid(err, "a bucket or an account is not an address");
        if (!str_split(str_from(host, 1), ']', &host, &rest)) return invalid(err, "a [ has no ]");
        if (rest.len > 0 && rest.ptr[0] != ':')
            return invalid(err, "something stands between ] and the port");
        if (rest.len > 0) port = str_from(rest, 1);
        st = take_ipv6(host, arena, &url->host, err);
    } else {
        if (!str_split(host, ':', &host, &port)) port = STR_NONE;
        st = take_host(host, network, wildcard, arena, &url->host, err);
    }
    if (st != ST_OK) return st;
    url->port = scheme ? scheme->port : 0;
    return port.ptr ? take_port(port, scheme, &url->port, err) : ST_OK;
}

static status parse(str text, bool wildcard, struct arena *arena, struct url *out,
                    struct error *err) {
    status st = check_characters(text, err);
    if (st != ST_OK) return st;
    struct url url = {0};
    str rest;
    if (!take_scheme(text, &url.scheme, &rest) || !str_starts(rest, STR("//")))
        return invalid(err, "it does not begin with a scheme and ://");
    url.scheme = lower(url.scheme, arena);
    rest = str_from(rest, 2);
    size_t end = 0;
    while (end < rest.len && rest.ptr[end] != '/' && rest.ptr[end] != '?')
        end++;
    if (end < rest.len && rest.ptr[end] == '?')
        return invalid(err, "a / is missing between host and ?");
    url.path = str_from(rest, end);
    st = take_authority(str_n(rest.ptr, end), wildcard, arena, &url, err);
    if (st == ST_OK) *out = url;
    return st;
}

status url_parse(str text, struct arena *arena, struct url *out, struct error *err) {
    return parse(text, false, arena, out, err);
}

/* ---- the rules ---- */

/* Names of services that tell an instance its credentials. They resolve to addresses that are
 * refused anyway; this says it before the look-up. */
static const str metadata_names[] = {
    STR_LIT("metadata"),
    STR_LIT("metadata.google.internal"),
    STR_LIT("metadata.goog"),
    STR_LIT("metadata.azure.internal"),
    STR_LIT("metadata.tencentyun.com"),
    STR_LIT("instance-data"),
    STR_LIT("instance-data.ec2.internal"),
};

/* `name` itself or anything below it. */
static bool is_name_or_below(str host, str name) {
    if (!str_ends(host, name)) return false;
    return host.len == name.len || host.ptr[host.len - name.len - 1] == '.';
}

/* What the host as written says about its address; a name says little. */
static enum reach reach_of_host(const struct url *url) {
    const struct scheme *scheme = scheme_find(url->scheme);
    if (scheme && !scheme->network) return REACH_PUBLIC;
    char literal[INET6_ADDRSTRLEN] = "";
    uint8_t address[16];
    ASSERT(url->host.ptr != NULL); /* parse() lets none pass without */
    if (url->host.len < sizeof literal) memcpy(literal, url->host.ptr, url->host.len);
    if (inet_pton(AF_INET, literal, address) == 1) return reach_of(address, 4);
    if (inet_pton(AF_INET6, literal, address) == 1) return reach_of(address, 16);
    for (size_t i = 0; i < COUNT_OF(metadata_names); i++) {
        if (is_name_or_below(url->host, metadata_names[i])) return REACH_NEVER;
    }
    return is_name_or_below(url->host, STR("localhost")) ? REACH_PRIVATE : REACH_PUBLIC;
}

/* Is there a "." or ".." among the segments, also with dots or slashes written as %XX? Whoever
 * fetches, or the server, may resolve it and so leave the prefix. */
static bool has_dot_segment(str path) {
    size_t dots = 0;
    size_t others = 0;
    for (size_t i = 0; i < path.len; i++) {
        int c = (unsigned char)path.ptr[i];
        if (c == '%' && path.len - i >= 3) {
            c = hex_value(path.ptr[i + 1]) * 16 + hex_value(path.ptr[i + 2]);
            i += 2;
        }
        if (c == '/' || c == '\\') {
            if (others == 0 && (dots == 1 || dots == 2)) return true;
            dots = others = 0;
        } else if (c == '.') {
            dots++;
        } else {
            others++;
        }
    }
    return others == 0 && (dots == 1 || dots == 2);
}

static bool is_below_prefix(str path, str prefix) {
    str query;
    if (prefix.len == 0) return true;
    (void)str_split(path, '?', &path, &query);
    if (!str_starts(path, prefix) || has_dot_segment(path)) return false;
    return path.len == prefix.len || prefix.ptr[prefix.len - 1] == '/' ||
           path.ptr[prefix.len] == '/';
}

static bool host_matches(str rule, str host) {
    if (str_eq(rule, STR("*"))) return true;
    if (!str_starts(rule, STR("*."))) return str_eq(rule, host);
    str suffix = str_from(rule, 1);
    return host.len > suffix.len && str_ends(host, suffix);
}

/* How far a URL comes with a rule: the part that stops it. */
enum part { PART_SCHEME, PART_HOST, PART_PORT, PART_PATH, PART_NONE };

static enum part rule_stops(const struct guard_rule *rule, const struct url *url) {
    const struct scheme *scheme = scheme_find(url->scheme);
    if (!scheme || !str_eq(rule->scheme, url->scheme)) return PART_SCHEME;
    if (!host_matches(rule->host, url->host)) return PART_HOST;
    if (url->port != (rule->port ? rule->port : scheme->port)) return PART_PORT;
    return is_below_prefix(url->path, rule->prefix) ? PART_NONE : PART_PATH;
}

static status refuse(enum part part, const struct url *url, struct error *err) {
    static const char *const names[] = {
        [PART_SCHEME] = "its scheme", [PART_HOST] = "its host", [PART_PORT] = "its port",
        [PART_PATH] = "its path",     [PART_NONE] = "it",
    };
    return error_at(err, REASON_URL_NOT_ALLOWED, "",
                    "%.*s://%.*s may not be fetched: %s is not on the list of allowed locations",
                    STR_ARG(url->scheme), STR_ARG(url->host), names[part]);
}

/* Schemes first, by their name alone: `file:/x` is refused for what it is, not for its form. */
static status check_scheme(str text, struct arena *arena, struct error *err) {
    str scheme;
    str rest;
    if (!take_scheme(text, &scheme, &rest) || scheme.len > LABEL_BYTES_MAX)
        return invalid(err, "it does not begin with a scheme and ://");
    scheme = lower(scheme, arena);
    if (scheme_find(scheme)) return ST_OK;
    return error_at(err, REASON_URL_NOT_ALLOWED, "",
                    "the scheme \"%.*s\" is never fetched; https, http, s3, gs and azure can be",
                    STR_ARG(scheme));
}

static status check_never(const struct url *url, struct error *err) {
    if (url->has_user) {
        return error_at(err, REASON_URL_NOT_ALLOWED, "",
                        "a URL with user or password is never fetched: send a header");
    }
    const struct scheme *scheme = scheme_find(url->scheme);
    if (scheme && !scheme->network && (str_has(url->path, '?') || has_dot_segment(url->path))) {
        /* It becomes part of another URL's path, where these would mean something. */
        return error_at(err, REASON_URL_NOT_ALLOWED, "",
                        "%.*s://%.*s: the path has a ? or a segment . or .. in it",
                        STR_ARG(url->scheme), STR_ARG(url->host));
    }
    if (reach_of_host(url) != REACH_NEVER) return ST_OK;
    return error_at(err, REASON_URL_NOT_ALLOWED, "",
                    "%.*s://%.*s is never fetched: the host is link-local, a metadata service, "
                    "multicast or reserved",
                    STR_ARG(url->scheme), STR_ARG(url->host));
}

status guard_rule_parse(str text, struct arena *arena, struct guard_rule *out, struct error *err) {
    struct url url = {0};
    status st = check_scheme(text, arena, err);
    if (st == ST_OK) st = parse(text, true, arena, &url, err);
    if (st == ST_OK) st = check_never(&url, err);
    if (st != ST_OK) return error_wrap(err, "allowed location");
    if (str_has(url.path, '?') || has_dot_segment(url.path)) {
        (void)invalid(err, "a path to allow has no ? and no . or .. in it");
        return error_wrap(err, "allowed location");
    }
    while (str_ends(url.path, STR("/")))
        url.path.len--;
    *out = (struct guard_rule){.scheme = url.scheme, .host = url.host, .port = url.port};
    if (url.path.len > 0) out->prefix = arena_str(arena, url.path);
    return ST_OK;
}

status guard_url(const struct guard *guard, str text, struct arena *arena, struct url *out,
                 struct error *err) {
    struct url url = {0};
    status st = check_scheme(text, arena, err);
    if (st == ST_OK) st = parse(text, false, arena, &url, err);
    if (st == ST_OK) st = check_never(&url, err);
    if (st != ST_OK) return st;
    enum part part = PART_SCHEME;
    for (size_t i = 0; i < guard->rule_count; i++) {
        enum part stop = rule_stops(&guard->rules[i], &url);
        if (stop > part) part = stop;
        if (stop == PART_NONE && str_eq(guard->rules[i].host, url.host)) url.exact = true;
    }
    if (part != PART_NONE) return refuse(part, &url, err);
    if (reach_of_host(&url) == REACH_PRIVATE && !(guard->allow_private && url.exact)) {
        return error_at(err, REASON_URL_NOT_ALLOWED, "",
                        "%.*s://%.*s may not be fetched: private addresses need the setting that "
                        "allows them and a location that names the host exactly",
                        STR_ARG(url.scheme), STR_ARG(url.host));
    }
    *out = url;
    return ST_OK;
}
