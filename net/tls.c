/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's door for connections. TLS 1.3 only; no tickets, no resumption, no renegotiation: the
 * handshake proves both identities once per connection, and after it the stream holds nothing but
 * application records, which is what makes leaving TLS behind (HELLO_PLAIN) exact.
 *
 * Must never: trust the system's certificate store, fall back to an older protocol, or send
 * close_notify on a connection that goes on in plain. */
#include "net/tls.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "node/base/err.h"
#include "node/base/log.h"

#define NAME_MAX_BYTES 128

struct tls_ctx {
	SSL_CTX *ssl_ctx;
	uint8_t pin[32]; /* SHA-256 of the only CA to trust, tls_ctx_create_pinned */
};

struct tls_session {
	SSL *ssl;
	bool established, failed;
	char name[NAME_MAX_BYTES];
};

static void log_openssl(const char *msg, const char *path)
{
	unsigned long e = ERR_peek_last_error();

	log_error("tls", msg, "path=\"%s\" reason=\"%s\"", path,
		  e ? ERR_reason_error_string(e) : "unknown");
	ERR_clear_error();
}

static SSL_CTX *ssl_ctx_new(void)
{
	SSL_CTX *c = SSL_CTX_new(TLS_method());

	CHECK(c);
	CHECK(SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1);
	CHECK(SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1);
	CHECK(SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
					  "TLS_CHACHA20_POLY1305_SHA256") == 1);
	SSL_CTX_set_num_tickets(c, 0);
	SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
	SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				    SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_read_ahead(c, 0);
	signal(SIGPIPE, SIG_IGN);
	return c;
}

/* The CA also travels in our chain, after the leaf, so that a joining node can compare its pin. */
static bool ca_send_along(SSL_CTX *c, const char *path)
{
	BIO *in = BIO_new_file(path, "r");
	X509 *ca = in ? PEM_read_bio_X509(in, NULL, NULL, NULL) : NULL;
	bool ok = ca && SSL_CTX_add1_chain_cert(c, ca) == 1;

	X509_free(ca);
	BIO_free(in);
	return ok;
}

/* A flipped byte may leave a certificate that still parses, and that no peer accepts. */
static bool signed_by(X509 *cert, const char *ca_path)
{
	BIO *in = BIO_new_file(ca_path, "r");
	X509 *ca = in ? PEM_read_bio_X509(in, NULL, NULL, NULL) : NULL;
	EVP_PKEY *key = ca ? X509_get0_pubkey(ca) : NULL;
	bool ok = key && X509_verify(cert ? cert : ca, key) == 1;

	X509_free(ca);
	BIO_free(in);
	return ok;
}

struct tls_ctx *tls_ctx_create(const char *ca, const char *cert, const char *key)
{
	SSL_CTX *c = ssl_ctx_new();

	ERR_clear_error();
	if (SSL_CTX_load_verify_locations(c, ca, NULL) != 1)
		log_openssl("cannot load the CA certificate: copy ca.pem from another node", ca);
	else if (SSL_CTX_use_certificate_chain_file(c, cert) != 1)
		log_openssl("cannot load the certificate: restore the file from a backup, or have it "
			    "issued again",
			    cert);
	else if (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1)
		log_openssl("cannot load the private key: restore the file from a backup, or have the "
			    "certificate and key issued again", key);
	else if (SSL_CTX_check_private_key(c) != 1)
		log_openssl("the private key does not belong to the certificate: restore both files from one "
			    "backup, or have them issued again", key);
	else if (!ca_send_along(c, ca))
		log_openssl("cannot load the CA certificate: copy ca.pem from another node", ca);
	else if (!signed_by(NULL, ca))
		log_openssl("the CA certificate is damaged: copy ca.pem from another node", ca);
	else if (!signed_by(SSL_CTX_get0_certificate(c), ca))
		log_openssl("the certificate is damaged, or another CA's: restore the file from a backup, or "
			    "have it issued again",
			    cert);
	else {
		struct tls_ctx *t = xcalloc(1, sizeof(*t));

		SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
		t->ssl_ctx = c;
		return t;
	}
	SSL_CTX_free(c);
	return NULL;
}

/* The peer's chain must hold the pinned CA, and the leaf must verify under it alone. */
static int verify_pinned(X509_STORE_CTX *sc, void *arg)
{
	const struct tls_ctx *t = arg;
	STACK_OF(X509) *chain = X509_STORE_CTX_get0_untrusted(sc);
	X509 *leaf = X509_STORE_CTX_get0_cert(sc);
	int ok = 0;

	for (int i = 0; i < sk_X509_num(chain) && !ok; i++) {
		X509 *ca = sk_X509_value(chain, i);
		uint8_t sum[EVP_MAX_MD_SIZE];
		unsigned len = 0;

		if (X509_digest(ca, EVP_sha256(), sum, &len) != 1 || len != sizeof(t->pin) ||
		    CRYPTO_memcmp(sum, t->pin, sizeof(t->pin)))
			continue;
		X509_STORE *store = X509_STORE_new();
		X509_STORE_CTX *check = X509_STORE_CTX_new();

		CHECK(store && check);
		ok = X509_STORE_add_cert(store, ca) == 1 &&
		     X509_STORE_CTX_init(check, store, leaf, NULL) == 1 &&
		     X509_STORE_CTX_set_purpose(check, X509_PURPOSE_SSL_SERVER) == 1 &&
		     X509_verify_cert(check) == 1;
		X509_STORE_CTX_free(check);
		X509_STORE_free(store);
	}
	X509_STORE_CTX_set_error(sc, ok ? X509_V_OK : X509_V_ERR_CERT_UNTRUSTED);
	return ok;
}

static bool hex_parse(const char *hex, uint8_t *out, size_t n)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < 2 * n; i++) {
		const char *d = hex[i] ? strchr(digits, hex[i] | 0x20) : NULL;

		if (!d)
			return false;
		out[i / 2] = (uint8_t)(out[i / 2] << 4 | (d - digits));
	}
	return !hex[2 * n];
}

struct tls_ctx *tls_ctx_create_pinned(const char *ca_sha256_hex)
{
	struct tls_ctx *t = xcalloc(1, sizeof(*t));

	if (!hex_parse(ca_sha256_hex, t->pin, sizeof(t->pin))) {
		log_error("tls", "the CA fingerprint must be 64 hex digits", "fingerprint=\"%s\"",
			  ca_sha256_hex);
		free(t);
		return NULL;
	}
	t->ssl_ctx = ssl_ctx_new();
	SSL_CTX_set_verify(t->ssl_ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_cert_verify_callback(t->ssl_ctx, verify_pinned, t);
	return t;
}

void tls_ctx_destroy(struct tls_ctx *c)
{
	if (!c)
		return;
	SSL_CTX_free(c->ssl_ctx);
	free(c);
}

void tls_ctx_allow_anonymous(struct tls_ctx *c, bool allow)
{
	SSL_CTX_set_verify(c->ssl_ctx,
			   SSL_VERIFY_PEER | (allow ? 0 : SSL_VERIFY_FAIL_IF_NO_PEER_CERT), NULL);
}

/* ---- Sessions ---- */

static SSL *ssl_new(struct tls_ctx *c, bool server)
{
	SSL *ssl = SSL_new(c->ssl_ctx);

	CHECK(ssl);
	if (server)
		SSL_set_accept_state(ssl);
	else
		SSL_set_connect_state(ssl);
	return ssl;
}

struct tls_session *tls_session_create(struct tls_ctx *c, int fd, bool server)
{
	struct tls_session *s = xcalloc(1, sizeof(*s));

	s->ssl = ssl_new(c, server);
	CHECK(SSL_set_fd(s->ssl, fd) == 1);
	return s;
}

void tls_session_destroy(struct tls_session *s)
{
	if (!s)
		return;
	ERR_clear_error();
	if (s->established && !s->failed)
		SSL_shutdown(s->ssl);
	SSL_free(s->ssl);
	ERR_clear_error();
	free(s);
}

void tls_session_drop(struct tls_session *s)
{
	if (!s)
		return;
	SSL_set_quiet_shutdown(s->ssl, 1);
	SSL_free(s->ssl);
	free(s);
}

/* Names go into log lines and comparisons: printable, without quotes. */
static bool name_is_plain(const char *name)
{
	for (const unsigned char *p = (const unsigned char *)name; *p; p++)
		if (*p < 0x20 || *p == 0x7f || *p == '"' || *p == '\\')
			return false;
	return true;
}

/* The one common name of a verified certificate; "" when there is none, several, or a strange one. */
static void common_name(SSL *ssl, char *out, size_t cap)
{
	X509 *cert = SSL_get0_peer_certificate(ssl);
	X509_NAME *subject = cert ? X509_get_subject_name(cert) : NULL;
	int at = subject ? X509_NAME_get_index_by_NID(subject, NID_commonName, -1) : -1;
	const ASN1_STRING *text;
	int len;

	out[0] = 0;
	if (at < 0 || SSL_get_verify_result(ssl) != X509_V_OK ||
	    X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0)
		return;
	text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
	len = ASN1_STRING_length(text);
	if (len <= 0 || (size_t)len >= cap || memchr(ASN1_STRING_get0_data(text), 0, (size_t)len))
		return;
	memcpy(out, ASN1_STRING_get0_data(text), (size_t)len);
	out[len] = 0;
	if (!name_is_plain(out))
		out[0] = 0;
}

/* Alerts by which a peer says that it does not accept our certificate. */
static bool is_auth_reason(int reason)
{
	switch (reason) {
	case SSL_R_CERTIFICATE_VERIFY_FAILED:
	case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
	case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_NO_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
	case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
	case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
		return true;
	default:
		return false;
	}
}

/* What an SSL_* call that did not succeed means: TLS_WANT_*, or 0 with *rc < 0 (orderly end: 0). */
static int outcome(struct tls_session *s, int ret, int *rc)
{
	int saved = errno;
	unsigned long e;
	int reason;

	switch (SSL_get_error(s->ssl, ret)) {
	case SSL_ERROR_WANT_READ:
		return TLS_WANT_READ;
	case SSL_ERROR_WANT_WRITE:
		return TLS_WANT_WRITE;
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_SYSCALL:
		s->failed = true;
		*rc = saved ? -saved : -ERR_CLOSED;
		return 0;
	default:
		break;
	}
	s->failed = true;
	e = ERR_peek_error();
	reason = ERR_GET_REASON(e);
	if (ERR_GET_LIB(e) != ERR_LIB_SSL)
		*rc = -ERR_PROTOCOL;
	else if (is_auth_reason(reason))
		*rc = -ERR_AUTH;
	else
		*rc = reason == SSL_R_UNEXPECTED_EOF_WHILE_READING ? -ERR_CLOSED : -ERR_PROTOCOL;
	if (*rc != -ERR_CLOSED)
		log_debug("tls", "failed", "reason=\"%s\" verify=\"%s\"",
			  ERR_reason_error_string(e) ? ERR_reason_error_string(e) : "unknown",
			  X509_verify_cert_error_string(SSL_get_verify_result(s->ssl)));
	ERR_clear_error();
	return 0;
}

int tls_handshake(struct tls_session *s, int *rc)
{
	int ret;

	*rc = 0;
	if (s->established)
		return 0;
	ERR_clear_error();
	errno = 0;
	ret = SSL_do_handshake(s->ssl);
	if (ret != 1) {
		ret = outcome(s, ret, rc);
		if (!ret && !*rc)
			*rc = -ERR_CLOSED;
		return ret;
	}
	s->established = true;
	common_name(s->ssl, s->name, sizeof(s->name));
	return 0;
}

ssize_t tls_read(struct tls_session *s, void *p, size_t n, int *rc)
{
	size_t got = 0;
	int ret;

	*rc = 0;
	ERR_clear_error();
	errno = 0;
	ret = SSL_read_ex(s->ssl, p, n, &got);
	return ret == 1 ? (ssize_t)got : outcome(s, ret, rc);
}

ssize_t tls_write(struct tls_session *s, const void *p, size_t n, int *rc)
{
	size_t put = 0;
	int ret;

	*rc = 0;
	ERR_clear_error();
	errno = 0;
	ret = SSL_write_ex(s->ssl, p, n, &put);
	return ret == 1 ? (ssize_t)put : outcome(s, ret, rc);
}

bool tls_pending(const struct tls_session *s)
{
	return SSL_has_pending(s->ssl);
}

void tls_session_read_ahead(struct tls_session *s)
{
	/* Room for several records, so that a burst of them is one read. */
	SSL_set_default_read_buffer_len(s->ssl, 64 << 10);
	SSL_set_read_ahead(s->ssl, 1);
}

const char *tls_peer_name(const struct tls_session *s)
{
	return s->name;
}

/* ---- node/http ---- */

void *tls_native_session(struct tls_ctx *c, bool server)
{
	return ssl_new(c, server);
}

void tls_native_peer_name(void *ssl, char *out, size_t cap)
{
	common_name(ssl, out, cap);
}

struct on_free {
	void (*fn)(void *arg);
	void *arg;
};

static void session_freed(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int idx, long argl, void *argp)
{
	struct on_free *f = ptr;

	if (f)
		f->fn(f->arg);
	free(f);
}

void tls_native_on_free(void *ssl, void (*fn)(void *arg), void *arg)
{
	static int index = -1; /* made by the first call; one loop makes all of them */
	struct on_free *f = xcalloc(1, sizeof(*f));

	if (index < 0)
		index = SSL_get_ex_new_index(0, NULL, NULL, NULL, session_freed);
	*f = (struct on_free){ .fn = fn, .arg = arg };
	CHECK(SSL_set_ex_data(ssl, index, f) == 1);
}
