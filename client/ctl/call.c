/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl's door. One HTTP request per call, to the daemon's root socket or to an admin TLS port.
 *
 * Over TLS the peer must prove to be a *node* of the cluster: its certificate carries the name
 * node.ashlar, which client certificates never do, and the name is verified against the CA. Must
 * never send anything secret over a connection that was not verified. */
#include <curl/curl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl/ctl.h"

#define ANSWER_MAX (256u << 20)
#define NODE_NAME  "node.ashlar"

struct answer {
	char *data;
	size_t len;
	bool too_long;
};

struct target {
	const char *unix_path; /* or: */
	const char *address;   /* host:port */
	const char *ca, *cert, *key;
	bool unverified;
};

static size_t on_data(char *data, size_t size, size_t n, void *arg)
{
	struct answer *a = arg;
	size_t len = size * n;

	if (a->len + len > ANSWER_MAX) {
		a->too_long = true;
		return 0;
	}
	a->data = xrealloc(a->data, a->len + len + 1);
	memcpy(a->data + a->len, data, len);
	a->len += len;
	a->data[a->len] = '\0';
	return len;
}

/* ---- Errors ------------------------------------------------------------------------------------
 */

int ctl_exit_of(const char *name, long status)
{
	static const struct {
		const char *name;
		int code;
	} table[] = {
		{"NOT_FOUND", CTL_NOT_FOUND},     {"ENOENT", CTL_NOT_FOUND},
		{"EXISTS", CTL_EXISTS},           {"CLAIMED", CTL_EXISTS},
		{"NO_LEADER", CTL_UNREACHABLE},   {"NOT_LEADER", CTL_UNREACHABLE},
		{"UNAVAILABLE", CTL_UNREACHABLE}, {"CLOSED", CTL_UNREACHABLE},
		{"RETRY", CTL_UNREACHABLE},       {"FULL", CTL_NO_SPACE},
		{"ENOSPC", CTL_NO_SPACE},         {"ETIMEDOUT", CTL_TIMEOUT},
		{"INCOMPLETE", CTL_REDUNDANCY},   {"TOO_FEW", CTL_REFUSED},
		{"OCCUPIED", CTL_REDUNDANCY},     {"FOREIGN", CTL_REDUNDANCY},
	};

	for (size_t i = 0; name && i < ARRAY_LEN(table); i++)
		if (!strcmp(table[i].name, name))
			return table[i].code;
	return status == 404 ? CTL_NOT_FOUND : CTL_REFUSED;
}

int ctl_error(struct ctl *c, int code, const char *name, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (c->json) {
		struct json *j = json_object_new();
		char *line;

		json_put_u64(j, "schema", 1);
		json_put_str(j, "error", name);
		json_put_str(j, "message", text);
		json_put_i64(j, "exit", code);
		line = json_print(j, false);
		fprintf(stderr, "%s\n", line);
		free(line);
		json_free(j);
	} else {
		fprintf(stderr, "ashlar: %s\n", text);
	}
	return code;
}

static int curl_failed(struct ctl *c, CURLcode rc, const struct target *t, const char *detail)
{
	const char *where = t->unix_path ? t->unix_path : t->address;

	if (rc == CURLE_OPERATION_TIMEDOUT)
		return ctl_error(c, CTL_TIMEOUT, "ETIMEDOUT",
				 "no answer from %s within %u s; it may still be carried out: look "
				 "before you repeat",
				 where, c->timeout_s);
	if (t->unix_path)
		return ctl_error(c, CTL_UNREACHABLE, "UNREACHABLE",
				 "cannot reach ashlard at %s (%s): is it running, are you root? "
				 "Another place is set "
				 "with ASHLAR_ADMIN",
				 where, detail[0] ? detail : curl_easy_strerror(rc));
	return ctl_error(c, CTL_UNREACHABLE, "UNREACHABLE", "cannot reach %s: %s", where,
			 detail[0] ? detail : curl_easy_strerror(rc));
}

/* ---- One request -------------------------------------------------------------------------------
 */

static void set_target(CURL *curl, const struct target *t, struct curl_slist **connect_to)
{
	CLEANUP(free_ptr) char *line = NULL;

	if (t->unix_path) {
		curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, t->unix_path);
		return;
	}
	line = xasprintf("::%s", t->address);
	*connect_to = curl_slist_append(NULL, line);
	curl_easy_setopt(curl, CURLOPT_CONNECT_TO, *connect_to);
	curl_easy_setopt(curl, CURLOPT_PROXY, "");
	curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, t->unverified ? 0L : 1L);
	curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, t->unverified ? 0L : 2L);
	if (t->ca)
		curl_easy_setopt(curl, CURLOPT_CAINFO, t->ca);
	curl_easy_setopt(curl, CURLOPT_CAPATH, NULL);
	if (t->cert)
		curl_easy_setopt(curl, CURLOPT_SSLCERT, t->cert);
	if (t->key)
		curl_easy_setopt(curl, CURLOPT_SSLKEY, t->key);
}

static int perform(struct ctl *c, const struct target *t, const char *method, const char *path,
		   const char *body, struct answer *a, long *status)
{
	CLEANUP(free_ptr)
	char *url = xasprintf("%s%s", t->unix_path ? "http://ashlard" : "https://" NODE_NAME, path);
	char detail[CURL_ERROR_SIZE] = "";
	struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
	struct curl_slist *connect_to = NULL;
	CURL *curl = curl_easy_init();
	long os_error = 0;
	CURLcode rc;

	CHECK(curl);
	headers = curl_slist_append(headers, "Expect:");
	set_target(curl, t, &connect_to);
	curl_easy_setopt(curl, CURLOPT_URL, url);
	curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
	curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 5L);
	curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)c->timeout_s);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, a);
	curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
	if (body || !strcmp(method, "POST") || !strcmp(method, "PATCH"))
		curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body ? body : "");
	rc = curl_easy_perform(curl);
	curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &os_error);
	if (rc == CURLE_COULDNT_CONNECT && t->unix_path && os_error) /* its own words are of a port */
		snprintf(detail, sizeof(detail), "%s", strerror((int)os_error));
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, status);
	curl_easy_cleanup(curl);
	curl_slist_free_all(headers);
	curl_slist_free_all(connect_to);
	return rc == CURLE_OK ? CTL_OK : curl_failed(c, rc, t, detail);
}

static int call(struct ctl *c, const struct target *t, const char *method, const char *path,
		struct json *body, struct json **out)
{
	CLEANUP(free_ptr) char *text = body ? json_print(body, false) : NULL;
	struct answer a = {0};
	struct json *j = NULL;
	char err[128] = "empty";
	long status = 0;
	int rc;

	json_free(body);
	rc = perform(c, t, method, path, text, &a, &status);
	if (rc == CTL_OK && a.len)
		j = json_parse(a.data, a.len, err, sizeof(err));
	free(a.data);
	if (rc != CTL_OK)
		return rc;
	if (!j)
		return ctl_error(c, CTL_REFUSED, "PROTOCOL",
				 "the answer (HTTP %ld) is not JSON: %s", status, err);
	if (status < 200 || status > 299) {
		const char *name = str_or(j, "error", "REFUSED");

		rc = ctl_error(c, ctl_exit_of(name, status), name, "%s",
			       str_or(j, "message", "refused"));
		json_free(j);
		return rc;
	}
	if (out)
		*out = j;
	else
		json_free(j);
	return CTL_OK;
}

/* ---- Where to -------------------------------------------------------------------------------- */

static int key_file_check(const char *path)
{
	struct stat st;

	if (stat(path, &st) == 0 && (st.st_mode & 077))
		fprintf(stderr, "ashlar: warning: %s may be read by others; chmod 600 it\n", path);
	return 0;
}

static int target_of(struct ctl *c, struct target *t)
{
	memset(t, 0, sizeof(*t));
	if (!strncmp(c->admin, "unix:", 5)) {
		t->unix_path = c->admin + 5;
		if (t->unix_path[0] != '/')
			return ctl_usage("ASHLAR_ADMIN: unix: needs an absolute path, e.g. "
					 "unix:/run/ashlar/admin.sock");
		return CTL_OK;
	}
	if (strncmp(c->admin, "https://", 8))
		return ctl_usage("ASHLAR_ADMIN must be unix:PATH or https://HOST:PORT, not \"%s\"",
				 c->admin);
	t->address = c->admin + 8;
	t->ca = getenv("ASHLAR_CA");
	t->cert = getenv("ASHLAR_CERT");
	t->key = getenv("ASHLAR_KEY");
	if (!t->ca || !t->cert || !t->key)
		return ctl_usage("over https, ASHLAR_CA, ASHLAR_CERT and ASHLAR_KEY must name the "
				 "files that `ashlar cert "
				 "issue operator NAME` made");
	if (!strrchr(t->address, ':') || strchr(t->address, '/'))
		return ctl_usage("ASHLAR_ADMIN: \"%s\" is not https://HOST:PORT", c->admin);
	return key_file_check(t->key);
}

int ctl_call(struct ctl *c, const char *method, const char *path, struct json *body,
	     struct json **out)
{
	struct target t;
	int rc = target_of(c, &t);

	if (rc != CTL_OK) {
		json_free(body);
		return rc;
	}
	return call(c, &t, method, path, body, out);
}

int ctl_call_joining(struct ctl *c, const char *address, const char *ca_file, const char *method,
		     const char *path, struct json *body, struct json **out)
{
	const struct target t = {.address = address, .ca = ca_file};

	return call(c, &t, method, path, body, out);
}

static int get_text(struct ctl *c, const struct target *t, const char *path, char **text)
{
	struct answer a = {0};
	long status = 0;
	int rc = perform(c, t, "GET", path, NULL, &a, &status);

	if (rc == CTL_OK && (status != 200 || !a.data))
		rc = ctl_error(c, ctl_exit_of(NULL, status), "REFUSED", "GET %s: HTTP %ld", path,
			       status);
	if (rc != CTL_OK) {
		free(a.data);
		return rc;
	}
	*text = a.data;
	return CTL_OK;
}

int ctl_fetch_ca(struct ctl *c, const char *address, char **pem)
{
	const struct target t = {.address = address, .unverified = true};

	return get_text(c, &t, "/v1/ca", pem);
}

char *ctl_escape(const char *name)
{
	char *escaped = curl_easy_escape(NULL, name, 0), *out;

	CHECK(escaped);
	out = xstrdup(escaped);
	curl_free(escaped);
	return out;
}
