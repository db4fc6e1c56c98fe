/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates for clients and operators. The key is made here and never travels. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "net/ca.h"
#include "node/base/err.h"

static int write_file(struct ctl *c, const char *path, const char *text)
{
	FILE *f = fopen(path, "we");
	bool ok = f && fputs(text, f) >= 0;

	if (f && fclose(f) != 0)
		ok = false;
	return ok ? CTL_OK : ctl_error(c, CTL_REFUSED, "EIO", "cannot write %s", path);
}

static int sign_and_store(struct ctl *c, const char *cn, const char *csr, const char *cert_path,
			  const char *ca_path)
{
	struct json *body = json_object_new(), *j;
	int rc;

	json_put_str(body, "cn", cn);
	json_put_str(body, "csr", csr);
	rc = ctl_call(c, "POST", "/v1/certs", body, &j);
	if (rc != CTL_OK)
		return rc;
	rc = write_file(c, cert_path, str_or(j, "certificate", ""));
	if (rc == CTL_OK)
		rc = write_file(c, ca_path, str_or(j, "ca", ""));
	json_free(j);
	return rc;
}

static int cert_issue(struct ctl *c, int argc, char **argv)
{
	const char *words[2], *dir = ".";
	const struct option_spec o[] = {{"--dir", &dir, NULL}};
	CLEANUP(free_ptr) char *csr = NULL;
	int rc, err;

	rc = ctl_args(&cert_verbs[0], argc, argv, o, ARRAY_LEN(o), words, 2, 2);
	if (rc != CTL_OK)
		return rc;
	if (strcmp(words[0], "client") && strcmp(words[0], "operator"))
		return ctl_usage("cert issue: \"%s\" is neither client nor operator", words[0]);
	if (strchr(words[1], '/'))
		return ctl_usage("cert issue: a name may not contain a slash");
	CLEANUP(free_ptr) char *cn = xasprintf("%s:%s", words[0], words[1]);
	CLEANUP(free_ptr) char *key_path = xasprintf("%s/%s.key", dir, words[1]);
	CLEANUP(free_ptr) char *cert_path = xasprintf("%s/%s.pem", dir, words[1]);
	CLEANUP(free_ptr) char *ca_path = xasprintf("%s/ca.pem", dir);

	err = ca_request(key_path, cn, &csr);
	if (err == -ERR_EXISTS)
		return ctl_error(c, CTL_EXISTS, "EXISTS",
				 "%s is there already; remove it or choose another --dir",
				 key_path);
	if (err < 0)
		return ctl_error(c, CTL_REFUSED, err_name(err), "cannot make a key at %s: %s",
				 key_path, err_text(err));
	rc = sign_and_store(c, cn, csr, cert_path, ca_path);
	if (rc != CTL_OK) {
		unlink(key_path);
		return rc;
	}
	if (c->json) {
		struct json *j = json_object_new();

		json_put_u64(j, "schema", 1);
		json_put_str(j, "cn", cn);
		json_put_str(j, "certificate", cert_path);
		json_put_str(j, "key", key_path);
		json_put_str(j, "ca", ca_path);
		print_json(j);
		json_free(j);
	} else {
		printf("%s: certificate %s, key %s, CA %s\n", cn, cert_path, key_path, ca_path);
	}
	return CTL_OK;
}

const struct verb cert_verbs[] = {
	{"cert", "issue", "client|operator NAME [--dir DIR]",
	 "Issues a certificate for a client host or an operator: DIR/NAME.pem, NAME.key (made "
	 "here), ca.pem.\n\n"
	 "Examples: ashlar cert issue client hv7 --dir /etc/ashlar\n"
	 "          ashlar cert issue operator alice",
	 cert_issue},
	{NULL},
};
