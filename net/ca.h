/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's second door: the cluster's certificate authority. Ed25519 keys, PEM files, key files
 * made with mode 0600 and renamed into place. Blocking; any thread (run it on a worker). Errors are
 * logged with the path and OpenSSL's reason; return 0 or a negative code. */
#pragma once

#include "node/base/check.h"

/* New CA: self-signed for 20 years, subject "ashlar CA <cluster uuid>". -ERR_EXISTS if a file is there. */
int ca_create(const char *cert_path, const char *key_path, const char *subject) MUST_USE;
/* New private key at key_path (-ERR_EXISTS if there) and a signing request for common name cn, PEM,
 * malloc'ed into *csr. */
int ca_request(const char *key_path, const char *cn, char **csr) MUST_USE;
/* Signs a request. The CN must be `cn` (else -ERR_AUTH). `san` = comma-separated "DNS:…,IP:…" or NULL.
 * PEM certificate malloc'ed into *cert. */
int ca_sign(const char *ca_cert_path, const char *ca_key_path, const char *csr, const char *cn,
	    const char *san, unsigned days, char **cert) MUST_USE;
/* The CA's private key as PEM, to a file of mode 0600 that must not exist (-ERR_EXISTS). -ERR_AUTH: it is
 * not the key of this CA certificate; nothing is written. */
int ca_key_install(const char *ca_cert_path, const char *ca_key_path, const char *pem) MUST_USE;
/* SHA-256 of a PEM certificate file's DER, lower-case hex. */
int ca_fingerprint(const char *cert_path, char out[65]) MUST_USE;
/* Seconds until the certificate ends (negative: ended). */
int ca_expires_in(const char *cert_path, int64_t *seconds) MUST_USE;
/* SHA-256 of bytes, hex: token secrets are kept only so. */
void ca_sha256_hex(const void *data, size_t len, char out[65]);
