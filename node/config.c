/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a node's YAML file. libcyaml checks the shape (known keys, no key twice, maps and lists
 * where they belong); every leaf arrives as text and is parsed here, so that each refusal can name
 * line, key, value and remedy. Must never start a node on a value it did not understand. */
#include <arpa/inet.h>
#include <ctype.h>
#include <cyaml/cyaml.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster/map.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "node/config.h"

#define FILE_SIZE_MAX     (256u << 10)
#define SHARDS_CONFIG_MAX 64u

struct raw_memory {
	char *page_cache, *block_cache, *dedup_hints, *log_index, *buffers;
};

/* What libcyaml fills: all leaves as text. */
struct raw {
	char *state_dir, *run_dir, *listen, *advertise, *admin_socket, *admin_listen,
		*admin_advertise;
	char *nbd_unix, *nbd_tcp, *nbd_allow_open, *shards, *name, *fault_set, *data_security;
	char *log_level, *io, *confirm_reads;
	struct raw_memory *memory;
	char **roles;
	unsigned roles_count;
};

#define TEXT(key, type)                                                                            \
	CYAML_FIELD_STRING_PTR(#key, CYAML_FLAG_POINTER_NULL_STR | CYAML_FLAG_OPTIONAL, type, key, \
			       0, CYAML_UNLIMITED)

static const cyaml_schema_field_t memory_fields[] = {
	TEXT(page_cache, struct raw_memory),
	TEXT(block_cache, struct raw_memory),
	TEXT(dedup_hints, struct raw_memory),
	TEXT(log_index, struct raw_memory),
	TEXT(buffers, struct raw_memory),
	CYAML_FIELD_END,
};

static const cyaml_schema_value_t role_value = {
	CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char *, 0, CYAML_UNLIMITED),
};

static const cyaml_schema_field_t top_fields[] = {
	TEXT(state_dir, struct raw),
	TEXT(run_dir, struct raw),
	TEXT(listen, struct raw),
	TEXT(advertise, struct raw),
	TEXT(admin_socket, struct raw),
	TEXT(admin_listen, struct raw),
	TEXT(admin_advertise, struct raw),
	TEXT(nbd_unix, struct raw),
	TEXT(nbd_tcp, struct raw),
	TEXT(nbd_allow_open, struct raw),
	TEXT(shards, struct raw),
	TEXT(name, struct raw),
	TEXT(fault_set, struct raw),
	TEXT(data_security, struct raw),
	TEXT(log_level, struct raw),
	TEXT(io, struct raw),
	TEXT(confirm_reads, struct raw),
	CYAML_FIELD_MAPPING_PTR("memory", CYAML_FLAG_POINTER_NULL | CYAML_FLAG_OPTIONAL, struct raw,
				memory, memory_fields),
	CYAML_FIELD_SEQUENCE("roles", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw, roles,
			     &role_value, 1, 3),
	CYAML_FIELD_END,
};

static const cyaml_schema_value_t top_value = {
	CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw, top_fields),
};

/* ---- Refusals ----------------------------------------------------------------------------------
 */

struct load {
	const char *file, *text;
	size_t len;
	char *err;         /* char[512] */
	char library[256]; /* libcyaml's first complaint */
	unsigned line;     /* its deepest place */
};

/* The line on which `key:` stands, 0 if nowhere (a default). */
static unsigned find_line(const struct load *l, const char *key)
{
	size_t key_len = strlen(key);
	unsigned line = 1;
	const char *p = l->text, *end = l->text + l->len;

	while (p < end) {
		const char *eol = memchr(p, '\n', (size_t)(end - p));
		const char *q = p;

		if (!eol)
			eol = end;
		while (q < eol && (*q == ' ' || *q == '{' || *q == ',' || *q == '"'))
			q++;
		if ((size_t)(eol - q) > key_len && !memcmp(q, key, key_len) &&
		    (q[key_len] == ':' || q[key_len] == '"'))
			return line;
		p = eol + 1;
		line++;
	}
	return 0;
}

static int refuse(struct load *l, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int refuse(struct load *l, const char *key, const char *fmt, ...)
{
	unsigned line = find_line(l, key);
	char what[320];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (line)
		snprintf(l->err, 512, "%.120s:%u: %s: %s", l->file, line, key, what);
	else
		snprintf(l->err, 512, "%.120s: %s: %s", l->file, key, what);
	return -ERR_INVALID;
}

static void library_log(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
	struct load *l = ctx;
	const char *place;
	char line[256];
	unsigned number;

	if (level != CYAML_LOG_ERROR)
		return;
	vsnprintf(line, sizeof(line), fmt, args);
	line[strcspn(line, "\n")] = '\0';
	if (!l->library[0])
		snprintf(l->library, sizeof(l->library), "%s",
			 strncmp(line, "Load: ", 6) ? line : line + 6);
	place = strstr(line, "line: ");
	if (place && !l->line && sscanf(place, "line: %u", &number) == 1)
		l->line = number;
}

/* libcyaml's words, turned into what the operator should do. */
static int refuse_shape(struct load *l, cyaml_err_t cyaml_rc)
{
	const char *key = strstr(l->library, "Unexpected key: ");
	const char *twice = strstr(l->library, "Mapping field already seen: ");
	char name[64];

	if (key) {
		snprintf(name, sizeof(name), "%.60s", key + strlen("Unexpected key: "));
		return refuse(l, name,
			      "unknown key; remove it or correct its spelling (all keys are in "
			      "ashlard.yaml.example)");
	}
	if (twice) {
		snprintf(name, sizeof(name), "%.60s",
			 twice + strlen("Mapping field already seen: "));
		return refuse(l, name, "given twice; keep one");
	}
	if (strstr(l->library, "Insufficient entries") || strstr(l->library, "Excessive entries"))
		return refuse(l, "roles", "one to three of storage, voter, gateway; leave it out for all");
	snprintf(l->err, 512, "%.120s:%u: not valid: %.200s", l->file, l->line,
		 l->library[0] ? l->library : cyaml_strerror(cyaml_rc));
	return -ERR_INVALID;
}

/* ---- Values ------------------------------------------------------------------------------------
 */

static bool given(const char *text)
{
	return text && *text && strcmp(text, "~") && strcasecmp(text, "null");
}

static int take_path(struct load *l, const char *key, const char *text, char **out)
{
	if (!given(text))
		return 0;
	if (text[0] != '/')
		return refuse(l, key, "\"%.80s\" is not an absolute path", text);
	if (strlen(text) > 200)
		return refuse(l, key, "longer than 200 bytes");
	free(*out);
	*out = xstrdup(text);
	return 0;
}

static int take_socket(struct load *l, const char *key, const char *text, char **out)
{
	if (given(text) && strlen(text) > 100)
		return refuse(l, key,
			      "a socket path may have at most 100 bytes; choose a shorter one");
	return take_path(l, key, text, out);
}

/* Splits "host:port" or "[v6]:port"; both must be numeric. */
static bool split_address(const char *text, char host[64], char port[8])
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
				 .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	const char *colon = strrchr(text, ':');
	size_t host_len;
	long number;
	char *end;

	if (!colon || colon == text || strlen(colon + 1) > 5 || !isdigit((unsigned char)colon[1]))
		return false;
	host_len = (size_t)(colon - text);
	if (text[0] == '[') {
		if (text[host_len - 1] != ']')
			return false;
		text++;
		host_len -= 2;
	} else if (memchr(text, ':', host_len)) {
		return false;
	}
	number = strtol(colon + 1, &end, 10);
	if (*end || number < 0 || number > 65535 || host_len == 0 || host_len > 45)
		return false;
	snprintf(host, 64, "%.*s", (int)host_len, text);
	snprintf(port, 8, "%u", (unsigned)number & 0xffff);
	if (getaddrinfo(host, port, &hints, &found) != 0)
		return false;
	freeaddrinfo(found);
	return true;
}

static int take_address(struct load *l, const char *key, const char *text, char **out)
{
	char host[64], port[8];

	if (!given(text))
		return 0;
	if (!split_address(text, host, port))
		return refuse(l, key,
			      "\"%.80s\" is not a numeric HOST:PORT, e.g. 10.0.0.1:7400 or "
			      "[fd00::1]:7400",
			      text);
	free(*out);
	*out = xstrdup(text);
	return 0;
}

static int take_size(struct load *l, const char *key, const char *text, uint64_t min, uint64_t *out)
{
	static const char units[] = "KMGT";
	unsigned long long value;
	const char *unit;
	char *end;

	if (!given(text))
		return 0;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (end == text || errno || text[0] == '-')
		return refuse(l, key, "\"%.40s\" is not a size; write e.g. 256M or 4G", text);
	if (*end) {
		unit = strchr(units, toupper((unsigned char)*end));
		unsigned shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;

		end++;
		if (unit && end[0] == 'i' && end[1] == 'B')
			end += 2;
		if (!unit || *end || value > UINT64_MAX >> shift)
			return refuse(l, key, "\"%.40s\" is not a size; write e.g. 256M or 4G",
				      text);
		value <<= shift;
	}
	if (value < min)
		return refuse(l, key, "%llu bytes is too small; at least %lluM", value,
			      (unsigned long long)(min >> 20));
	if (value > (1ull << 44))
		return refuse(l, key, "more than 16 TiB of memory");
	*out = value;
	return 0;
}

static int take_bool(struct load *l, const char *key, const char *text, bool *out)
{
	if (!given(text))
		return 0;
	if (!strcasecmp(text, "true") || !strcasecmp(text, "yes"))
		*out = true;
	else if (!strcasecmp(text, "false") || !strcasecmp(text, "no"))
		*out = false;
	else
		return refuse(l, key, "\"%.40s\" is neither true nor false", text);
	return 0;
}

static int take_choice(struct load *l, const char *key, const char *text, const char *const *names,
		       unsigned count, int *out)
{
	char all[96] = "";

	if (!given(text))
		return 0;
	for (unsigned i = 0; i < count; i++) {
		size_t n = strlen(all);

		if (!strcmp(text, names[i])) {
			*out = (int)i;
			return 0;
		}
		snprintf(all + n, sizeof(all) - n, "%s%s", i ? ", " : "", names[i]);
	}
	return refuse(l, key, "\"%.40s\" is none of: %s", text, all);
}

static bool name_valid(const char *s)
{
	size_t n = strlen(s);

	if (n == 0 || n > NAME_MAX_LEN || !isalnum((unsigned char)s[0]))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i]))
			return false;
	return true;
}

static int take_name(struct load *l, const char *key, const char *text, char **out)
{
	if (!given(text))
		return 0;
	if (!name_valid(text))
		return refuse(
			l, key,
			"\"%.80s\": 1 to 63 letters, digits, '.', '_' or '-', beginning with a "
			"letter or digit",
			text);
	free(*out);
	*out = xstrdup(text);
	return 0;
}

static int take_shards(struct load *l, const char *text, unsigned *out)
{
	unsigned long value;
	char *end;

	if (!given(text))
		return 0;
	errno = 0;
	value = strtoul(text, &end, 10);
	if (*end || end == text || errno || text[0] == '-' || value > SHARDS_CONFIG_MAX)
		return refuse(l, "shards", "\"%.40s\" is not a number from 0 (automatic) to %u",
			      text, SHARDS_CONFIG_MAX);
	if (value && !is_pow2(value))
		return refuse(l, "shards", "%lu is not a power of two", value);
	if (value)
		*out = (unsigned)value;
	return 0;
}

static int take_roles(struct load *l, const struct raw *r, uint8_t *out)
{
	static const char *const names[] = {"storage", "voter", "gateway"};
	uint8_t bits = 0;

	for (unsigned i = 0; i < r->roles_count; i++) {
		int which = -1, rc;

		if (!given(r->roles[i]))
			return refuse(l, "roles", "an empty entry");
		rc = take_choice(l, "roles", r->roles[i], names, ARRAY_LEN(names), &which);
		if (rc < 0)
			return rc;
		bits |= (uint8_t)(1u << which); /* enum node_role has these bits in this order */
	}
	if (bits)
		*out = bits;
	return 0;
}

/* ---- Defaults ----------------------------------------------------------------------------------
 */

static bool wildcard(const char *address)
{
	return !strncmp(address, "0.0.0.0:", 8) || !strncmp(address, "[::]:", 5);
}

/* The first address of an interface that is up and no loopback: what a single-homed host means. */
static void first_address(char out[64])
{
	struct ifaddrs *all = NULL;

	snprintf(out, 64, "127.0.0.1");
	if (getifaddrs(&all) != 0)
		return;
	for (struct ifaddrs *i = all; i; i = i->ifa_next) {
		struct sockaddr_in in;

		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
			continue;
		memcpy(&in, i->ifa_addr, sizeof(in));
		if (ntohl(in.sin_addr.s_addr) >> 24 == 127)
			continue;
		inet_ntop(AF_INET, &in.sin_addr, out, 64);
		break;
	}
	freeifaddrs(all);
}

static void default_addresses(struct config *c)
{
	const char *port = strrchr(c->listen, ':') + 1;

	if (!c->advertise && wildcard(c->listen)) {
		char host[64];

		first_address(host);
		c->advertise = xasprintf("%s:%s", host, port);
	} else if (!c->advertise) {
		c->advertise = xstrdup(c->listen);
	}
	if (!c->admin_listen || c->admin_advertise)
		return;
	if (wildcard(c->admin_listen))
		c->admin_advertise =
			xasprintf("%.*s:%s", (int)(strrchr(c->advertise, ':') - c->advertise),
				  c->advertise, strrchr(c->admin_listen, ':') + 1);
	else
		c->admin_advertise = xstrdup(c->admin_listen);
}

/* What can only be derived once the file was read. */
static void fill_derived(struct config *c)
{
	if (!c->admin_socket)
		c->admin_socket = xasprintf("%s/admin.sock", c->run_dir);
	if (!c->nbd_unix)
		c->nbd_unix = xasprintf("%s/nbd.sock", c->run_dir);
	if (!c->fault_set)
		c->fault_set = xstrdup(c->name);
	default_addresses(c);
}

static void base_defaults(struct config *c)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES);
	uint64_t ram = pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : 1ull << 30;
	char host[NAME_MAX_LEN + 1] = "";

	*c = (struct config){.log_level = LOG_INFO, .shards = 1};
	if (gethostname(host, sizeof(host) - 1) != 0)
		host[0] = '\0';
	host[strcspn(host, ".")] = '\0';
	c->name = xstrdup(name_valid(host) ? host : "node");
	c->state_dir = xstrdup("/var/lib/ashlar");
	c->run_dir = xstrdup("/run/ashlar");
	c->listen = xstrdup("0.0.0.0:7400");
	while ((long)c->shards * 2 <= MIN(cores, 4))
		c->shards *= 2;
	c->page_cache_bytes = MAX(ram / 10, 64ull << 20);
	c->block_cache_bytes = 64ull << 20;
	c->dedup_hint_bytes = MAX(ram / 64, 64ull << 20);
	c->log_index_bytes = 128ull << 20;
	c->buffers_bytes = 256ull << 20;
	c->roles = ROLE_STORAGE | ROLE_VOTER | ROLE_GATEWAY;
}

void config_defaults(struct config *c)
{
	base_defaults(c);
	fill_derived(c);
}

/* ---- Load --------------------------------------------------------------------------------------
 */

static int take_memory(struct load *l, const struct raw_memory *m, struct config *c)
{
	int rc;

	if (!m)
		return 0;
	rc = take_size(l, "page_cache", m->page_cache, 1 << 20, &c->page_cache_bytes);
	if (!rc)
		rc = take_size(l, "block_cache", m->block_cache, 1 << 20, &c->block_cache_bytes);
	if (!rc)
		rc = take_size(l, "dedup_hints", m->dedup_hints, 1 << 16, &c->dedup_hint_bytes);
	if (!rc)
		rc = take_size(l, "log_index", m->log_index, 1 << 20, &c->log_index_bytes);
	if (!rc)
		rc = take_size(l, "buffers", m->buffers, 16 << 20, &c->buffers_bytes);
	return rc;
}

static int take_places(struct load *l, const struct raw *r, struct config *c)
{
	struct {
		const char *key, *text;
		char **out;
		int (*take)(struct load *, const char *, const char *, char **);
	} const places[] = {
		{"state_dir", r->state_dir, &c->state_dir, take_path},
		{"run_dir", r->run_dir, &c->run_dir, take_path},
		{"listen", r->listen, &c->listen, take_address},
		{"advertise", r->advertise, &c->advertise, take_address},
		{"admin_socket", r->admin_socket, &c->admin_socket, take_socket},
		{"admin_listen", r->admin_listen, &c->admin_listen, take_address},
		{"admin_advertise", r->admin_advertise, &c->admin_advertise, take_address},
		{"nbd_unix", r->nbd_unix, &c->nbd_unix, take_socket},
		{"nbd_tcp", r->nbd_tcp, &c->nbd_tcp, take_address},
		{"name", r->name, &c->name, take_name},
		{"fault_set", r->fault_set, &c->fault_set, take_name},
	};

	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		int rc = places[i].take(l, places[i].key, places[i].text, places[i].out);

		if (rc < 0)
			return rc;
	}
	if (c->advertise && wildcard(c->advertise))
		return refuse(l, "advertise",
			      "a wildcard cannot be dialled; give this node's own address");
	if (c->admin_advertise && wildcard(c->admin_advertise))
		return refuse(l, "admin_advertise",
			      "a wildcard cannot be dialled; give this node's own address");
	if (strlen(c->run_dir) > 80)
		return refuse(l, "run_dir", "longer than 80 bytes: socket paths would not fit");
	return 0;
}

static int take_all(struct load *l, const struct raw *r, struct config *c)
{
	static const char *const security[] = {"tls", "authenticated"};
	static const char *const io[] = {"auto", "direct", "buffered"};
	static const char *const levels[] = {"debug", "info", "warn", "error"};
	int rc, choice;

	rc = take_places(l, r, c);
	if (!rc)
		rc = take_bool(l, "nbd_allow_open", r->nbd_allow_open, &c->nbd_allow_open);
	if (!rc)
		rc = take_bool(l, "confirm_reads", r->confirm_reads, &c->confirm_reads);
	if (!rc)
		rc = take_shards(l, r->shards, &c->shards);
	choice = c->data_security;
	if (!rc)
		rc = take_choice(l, "data_security", r->data_security, security,
				 ARRAY_LEN(security), &choice);
	c->data_security = (enum config_security)choice;
	choice = c->io;
	if (!rc)
		rc = take_choice(l, "io", r->io, io, ARRAY_LEN(io), &choice);
	c->io = (enum config_io)choice;
	if (!rc)
		rc = take_choice(l, "log_level", r->log_level, levels, ARRAY_LEN(levels),
				 &c->log_level);
	if (!rc)
		rc = take_memory(l, r->memory, c);
	if (!rc)
		rc = take_roles(l, r, &c->roles);
	return rc;
}

int config_parse(const char *name, const void *text, size_t len, struct config *out, char err[512])
{
	struct load l = {.file = name, .text = text, .len = len, .err = err};
	const cyaml_config_t cfg = {.log_fn = library_log,
				    .log_ctx = &l,
				    .mem_fn = cyaml_mem,
				    .log_level = CYAML_LOG_ERROR,
				    .flags = CYAML_CFG_NO_ALIAS};
	struct raw *raw = NULL;
	cyaml_err_t cyaml_rc;
	int rc = 0;

	err[0] = '\0';
	base_defaults(out);
	cyaml_rc = cyaml_load_data(text, len, &cfg, &top_value, (cyaml_data_t **)&raw, NULL);
	if (cyaml_rc == CYAML_OK && raw)
		rc = take_all(&l, raw, out);
	else if (cyaml_rc != CYAML_OK)
		rc = refuse_shape(&l, cyaml_rc);
	if (raw)
		cyaml_free(&cfg, &top_value, raw, 0);
	if (rc < 0) {
		config_free(out);
		return rc;
	}
	fill_derived(out);
	return 0;
}

int config_load(const char *path, struct config *out, char err[512])
{
	FILE *f = fopen(path, "re");
	CLEANUP(free_ptr) char *text = xmalloc(FILE_SIZE_MAX + 1);
	size_t n;
	bool failed;

	memset(out, 0, sizeof(*out));
	if (!f) {
		snprintf(err, 512, "%.200s: %s; give the right path with --config", path,
			 strerror(errno));
		return -errno;
	}
	n = fread(text, 1, FILE_SIZE_MAX + 1, f);
	failed = ferror(f);
	fclose(f);
	if (failed) {
		snprintf(err, 512, "%.200s: cannot be read", path);
		return -EIO;
	}
	if (n > FILE_SIZE_MAX) {
		snprintf(err, 512, "%.200s: larger than %u KiB: not a node's configuration", path,
			 FILE_SIZE_MAX >> 10);
		return -EFBIG;
	}
	return config_parse(path, text, n, out, err);
}

void config_free(struct config *c)
{
	char *const all[] = {c->state_dir,    c->run_dir,      c->listen,          c->advertise,
			     c->admin_socket, c->admin_listen, c->admin_advertise, c->nbd_unix,
			     c->nbd_tcp,      c->name,         c->fault_set};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		free(all[i]);
	memset(c, 0, sizeof(*c));
}
