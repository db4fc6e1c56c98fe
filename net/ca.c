/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's second door: keys, requests and certificates of the cluster's own authority.
 *
 * Ed25519 only: small, fast, nothing to choose. Private keys are written 0600 to a temporary name,
 * fsynced and linked into place, so that a key file is whole or absent and never replaces another.
 * Must never: log key material, or sign a name other than the one that the caller names. */
#include "net/ca.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "node/base/err.h"
#include "node/base/log.h"

#define CA_DAYS (20 * 365 + 5)
#define SKEW_SECONDS 3600 /* a certificate is valid a little before it was made: clocks differ */
#define NAME_LEN_MAX 64	  /* of a common name, X.520 */
#define PEM_MAX_BYTES (64 << 10)

static int fail(const char *msg, const char *what, int rc)
{
	unsigned long e = ERR_peek_last_error();
	const char *reason = e ? ERR_reason_error_string(e) : NULL;

	log_error("ca", msg, "what=\"%s\" error=%s reason=\"%s\"", what, err_name(rc),
		  reason ? reason : err_text(rc));
	ERR_clear_error();
	return rc;
}

/* ---- Files ---- */

static int dir_sync(const char *path)
{
	CLEANUP(free_ptr) char *copy = xstrdup(path);
	int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = fd < 0 || fsync(fd) ? -errno : 0;

	if (fd >= 0)
		close(fd);
	return rc;
}

static int bytes_write(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t put = write(fd, p, n);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		p += put;
		n -= (size_t)put;
	}
	return fsync(fd) ? -errno : 0;
}

/* Into place without replacing: link(2) fails when the name exists, rename(2) would not. */
static int file_publish(const char *tmp, const char *path)
{
	if (!renameat2(AT_FDCWD, tmp, AT_FDCWD, path, RENAME_NOREPLACE))
		return dir_sync(path);
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	if (link(tmp, path))
		return -errno;
	unlink(tmp);
	return dir_sync(path);
}

static int file_create(const char *path, const char *data, size_t len, mode_t mode)
{
	CLEANUP(free_ptr) char *tmp = xasprintf("%s.tmp-%ld", path, (long)getpid());
	int fd, rc;

	unlink(tmp);
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return fail("cannot create a file", tmp, -errno);
	rc = bytes_write(fd, data, len);
	if (!rc && fchmod(fd, mode))
		rc = -errno;
	close(fd);
	if (!rc)
		rc = file_publish(tmp, path);
	if (!rc)
		return 0;
	unlink(tmp);
	if (rc == -EEXIST)
		rc = -ERR_EXISTS;
	return fail("cannot write a file", path, rc);
}

static int absent(const char *path)
{
	if (access(path, F_OK))
		return 0;
	log_error("ca", "a file is there already and is not overwritten; move it away first",
		  "path=\"%s\"", path);
	return -ERR_EXISTS;
}

static int bio_create_file(BIO *b, const char *path, mode_t mode)
{
	char *data;
	long len = BIO_get_mem_data(b, &data);

	return file_create(path, data, (size_t)len, mode);
}

static char *bio_text(BIO *b)
{
	char *data, *out;
	long len = BIO_get_mem_data(b, &data);

	out = xmalloc((size_t)len + 1);
	memcpy(out, data, (size_t)len);
	out[len] = 0;
	return out;
}

/* A key passed through this BIO: its memory is wiped when freed. */
static BIO *bio_secret(void)
{
	BIO *b = BIO_new(BIO_s_secmem());

	CHECK(b);
	return b;
}

static int key_create_file(EVP_PKEY *key, const char *path)
{
	BIO *b = bio_secret();
	int rc;

	if (PEM_write_bio_PrivateKey(b, key, NULL, NULL, 0, NULL, NULL) == 1)
		rc = bio_create_file(b, path, 0600);
	else
		rc = fail("cannot encode a private key", path, -ERR_INVALID);
	BIO_free(b);
	return rc;
}

static X509 *cert_load(const char *path)
{
	BIO *in = BIO_new_file(path, "r");
	X509 *x = in ? PEM_read_bio_X509(in, NULL, NULL, NULL) : NULL;

	BIO_free(in);
	return x;
}

static EVP_PKEY *key_load(const char *path)
{
	BIO *in = BIO_new_file(path, "r");
	EVP_PKEY *k = in ? PEM_read_bio_PrivateKey(in, NULL, NULL, NULL) : NULL;

	BIO_free(in);
	return k;
}

/* ---- Certificates ---- */

static EVP_PKEY *key_make(void)
{
	EVP_PKEY *k = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");

	CHECK(k);
	return k;
}

static bool name_set(X509_NAME *name, const char *cn)
{
	return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)cn, -1,
					  -1, 0) == 1;
}

static bool extension_add(X509 *x, X509 *issuer, int nid, const char *value)
{
	X509V3_CTX ctx;
	X509_EXTENSION *e;
	bool ok;

	X509V3_set_ctx_nodb(&ctx);
	X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
	e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
	ok = e && X509_add_ext(x, e, -1) == 1;
	X509_EXTENSION_free(e);
	return ok;
}

/* Serial number, dates and key: what the CA's own and a leaf certificate share. */
static X509 *cert_new(EVP_PKEY *key, unsigned days)
{
	X509 *x = X509_new();
	BIGNUM *serial = BN_new();

	CHECK(x && serial);
	CHECK(BN_rand(serial, 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1);
	CHECK(BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(x)));
	BN_free(serial);
	CHECK(X509_set_version(x, X509_VERSION_3) == 1);
	CHECK(X509_gmtime_adj(X509_getm_notBefore(x), -SKEW_SECONDS));
	CHECK(X509_time_adj_ex(X509_getm_notAfter(x), (int)days, 0, NULL));
	CHECK(X509_set_pubkey(x, key) == 1);
	return x;
}

static bool ca_cert_fill(X509 *x, EVP_PKEY *key, const char *subject)
{
	return name_set(X509_get_subject_name(x), subject) &&
	       X509_set_issuer_name(x, X509_get_subject_name(x)) == 1 &&
	       extension_add(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
	       extension_add(x, x, NID_key_usage, "critical,keyCertSign,cRLSign") &&
	       extension_add(x, x, NID_subject_key_identifier, "hash") &&
	       X509_sign(x, key, NULL) > 0;
}

int ca_create(const char *cert_path, const char *key_path, const char *subject)
{
	EVP_PKEY *key;
	X509 *x;
	BIO *b;
	int rc = absent(cert_path);

	if (!rc)
		rc = absent(key_path);
	if (rc)
		return rc;
	ERR_clear_error();
	key = key_make();
	x = cert_new(key, CA_DAYS);
	b = BIO_new(BIO_s_mem());
	CHECK(b);
	if (!ca_cert_fill(x, key, subject) || PEM_write_bio_X509(b, x) != 1)
		rc = fail("cannot make the CA certificate", cert_path, -ERR_INVALID);
	if (!rc)
		rc = key_create_file(key, key_path);
	if (!rc) {
		rc = bio_create_file(b, cert_path, 0644);
		if (rc) /* a key without its certificate is of no use and would block a second try */
			unlink(key_path);
	}
	BIO_free(b);
	X509_free(x);
	EVP_PKEY_free(key);
	return rc;
}

int ca_request(const char *key_path, const char *cn, char **csr)
{
	EVP_PKEY *key;
	X509_REQ *q;
	BIO *b;
	int rc = absent(key_path);

	*csr = NULL;
	if (rc)
		return rc;
	ERR_clear_error();
	key = key_make();
	q = X509_REQ_new();
	b = BIO_new(BIO_s_mem());
	CHECK(q && b);
	if (X509_REQ_set_version(q, X509_REQ_VERSION_1) != 1 ||
	    !name_set(X509_REQ_get_subject_name(q), cn) || X509_REQ_set_pubkey(q, key) != 1 ||
	    X509_REQ_sign(q, key, NULL) <= 0 || PEM_write_bio_X509_REQ(b, q) != 1)
		rc = fail("cannot make a signing request", key_path, -ERR_INVALID);
	if (!rc)
		rc = key_create_file(key, key_path);
	if (!rc)
		*csr = bio_text(b);
	BIO_free(b);
	X509_REQ_free(q);
	EVP_PKEY_free(key);
	return rc;
}

/* The request must prove possession of its Ed25519 key and name exactly `cn`. */
static int request_check(X509_REQ *q, const char *cn)
{
	EVP_PKEY *key = X509_REQ_get0_pubkey(q);
	X509_NAME *name = X509_REQ_get_subject_name(q);
	char text[NAME_LEN_MAX + 2];
	int len;

	if (!key || EVP_PKEY_get_id(key) != EVP_PKEY_ED25519 || X509_REQ_verify(q, key) != 1)
		return -ERR_AUTH;
	len = X509_NAME_get_text_by_NID(name, NID_commonName, text, sizeof(text));
	if (X509_NAME_entry_count(name) != 1 || len < 0 || (size_t)len != strlen(cn) ||
	    strcmp(text, cn))
		return -ERR_AUTH;
	return 0;
}

/* OpenSSL's value syntax can name files and sections: only plain DNS: and IP: items pass. */
static bool san_is_plain(const char *san)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:";
	const char *p = san;

	for (;;) {
		size_t n = strcspn(p, ",");
		size_t skip = !strncmp(p, "DNS:", 4) ? 4 : !strncmp(p, "IP:", 3) ? 3 : 0;

		if (!skip || n <= skip || strspn(p, allowed) < n)
			return false;
		if (!p[n])
			return true;
		p += n + 1;
	}
}

static bool leaf_fill(X509 *x, X509 *ca, EVP_PKEY *ca_key, const char *cn, const char *san)
{
	return name_set(X509_get_subject_name(x), cn) &&
	       X509_set_issuer_name(x, X509_get_subject_name(ca)) == 1 &&
	       extension_add(x, ca, NID_basic_constraints, "critical,CA:FALSE") &&
	       extension_add(x, ca, NID_key_usage, "critical,digitalSignature") &&
	       extension_add(x, ca, NID_ext_key_usage, "clientAuth,serverAuth") &&
	       extension_add(x, ca, NID_subject_key_identifier, "hash") &&
	       extension_add(x, ca, NID_authority_key_identifier, "keyid:always") &&
	       (!san || extension_add(x, ca, NID_subject_alt_name, san)) &&
	       X509_sign(x, ca_key, NULL) > 0;
}

static X509_REQ *request_parse(const char *csr)
{
	size_t len = strlen(csr);
	BIO *in = len <= PEM_MAX_BYTES ? BIO_new_mem_buf(csr, (int)len) : NULL;
	X509_REQ *q = in ? PEM_read_bio_X509_REQ(in, NULL, NULL, NULL) : NULL;

	BIO_free(in);
	return q;
}

static int leaf_make(X509 *ca, EVP_PKEY *ca_key, const char *ca_cert_path, X509_REQ *q,
		     const char *cn, const char *san, unsigned days, char **cert)
{
	X509 *x = cert_new(X509_REQ_get0_pubkey(q), days);
	BIO *b = BIO_new(BIO_s_mem());
	int rc = 0;

	CHECK(b);
	if (!leaf_fill(x, ca, ca_key, cn, san) || PEM_write_bio_X509(b, x) != 1)
		rc = fail("cannot sign a certificate", ca_cert_path, -ERR_INVALID);
	else
		*cert = bio_text(b);
	BIO_free(b);
	X509_free(x);
	return rc;
}

int ca_sign(const char *ca_cert_path, const char *ca_key_path, const char *csr, const char *cn,
	    const char *san, unsigned days, char **cert)
{
	X509_REQ *q;
	X509 *ca = NULL;
	EVP_PKEY *key = NULL;
	int rc = 0;

	*cert = NULL;
	ERR_clear_error();
	q = request_parse(csr);
	if (!q)
		rc = fail("malformed signing request", cn, -ERR_INVALID);
	else if (request_check(q, cn))
		rc = fail("the signing request does not prove this name", cn, -ERR_AUTH);
	else if (san && !san_is_plain(san))
		rc = fail("not a list of DNS:name and IP:address", san, -ERR_INVALID);
	else if (!(ca = cert_load(ca_cert_path)))
		rc = fail("cannot read the CA certificate", ca_cert_path, -ERR_INVALID);
	else if (!(key = key_load(ca_key_path)))
		rc = fail("cannot read the CA key", ca_key_path, -ERR_INVALID);
	else if (X509_check_private_key(ca, key) != 1)
		rc = fail("the CA key does not belong to the CA certificate", ca_key_path,
			  -ERR_INVALID);
	else
		rc = leaf_make(ca, key, ca_cert_path, q, cn, san, days, cert);
	EVP_PKEY_free(key);
	X509_free(ca);
	X509_REQ_free(q);
	return rc;
}

int ca_key_install(const char *ca_cert_path, const char *ca_key_path, const char *pem)
{
	X509 *ca = NULL;
	BIO *in = BIO_new_mem_buf(pem, -1);
	EVP_PKEY *key = in ? PEM_read_bio_PrivateKey(in, NULL, NULL, NULL) : NULL;
	int rc;

	ERR_clear_error();
	if (!(ca = cert_load(ca_cert_path)))
		rc = fail("cannot read the CA certificate", ca_cert_path, -ERR_INVALID);
	else if (!key || X509_check_private_key(ca, key) != 1)
		rc = fail("this is not the key of the cluster's CA", ca_key_path, -ERR_AUTH);
	else
		rc = file_create(ca_key_path, pem, strlen(pem), 0600);
	EVP_PKEY_free(key);
	X509_free(ca);
	BIO_free(in);
	return rc;
}

/* ---- Questions ---- */

static void hex(const uint8_t *p, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++)
		snprintf(out + 2 * i, 3, "%02x", p[i]);
}

int ca_fingerprint(const char *cert_path, char out[65])
{
	uint8_t sum[EVP_MAX_MD_SIZE];
	unsigned len = 0;
	X509 *x;
	int rc = 0;

	ERR_clear_error();
	x = cert_load(cert_path);
	if (!x || X509_digest(x, EVP_sha256(), sum, &len) != 1 || len != 32)
		rc = fail("cannot read a certificate", cert_path, -ERR_INVALID);
	else
		hex(sum, len, out);
	X509_free(x);
	return rc;
}

int ca_expires_in(const char *cert_path, int64_t *seconds)
{
	int days = 0, rest = 0, rc = 0;
	X509 *x;

	ERR_clear_error();
	x = cert_load(cert_path);
	if (!x || ASN1_TIME_diff(&days, &rest, NULL, X509_get0_notAfter(x)) != 1)
		rc = fail("cannot read a certificate", cert_path, -ERR_INVALID);
	else
		*seconds = (int64_t)days * 86400 + rest;
	X509_free(x);
	return rc;
}

void ca_sha256_hex(const void *data, size_t len, char out[65])
{
	uint8_t sum[EVP_MAX_MD_SIZE];
	unsigned n = 0;

	CHECK(EVP_Digest(data, len, sum, &n, EVP_sha256(), NULL) == 1 && n == 32);
	hex(sum, n, out);
}
