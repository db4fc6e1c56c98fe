/* SPDX-License-Identifier: Apache-2.0 */
/* The certificate authority: what it makes is accepted by TLS, what it must not sign it refuses, and
 * no file is ever overwritten or readable by others. */
#include <sys/stat.h>
#include <unistd.h>

#include "net/ca.h"
#include "tests/lib/test.h"
#include "tests/net/net_fixture.h"

static char cert[5000], key[5000];

static void ca_make(void)
{
	static bool made;

	snprintf(cert, sizeof(cert), "%s", fixture_ca_path("our-ca.crt"));
	snprintf(key, sizeof(key), "%s", fixture_ca_path("our-ca.key"));
	if (!made)
		EXPECT_OK(ca_create(cert, key, "ashlar CA 1"));
	made = true;
}

static char *request(const char *name, const char *cn)
{
	char *csr;

	EXPECT_OK(ca_request(fixture_ca_path(name), cn, &csr));
	EXPECT(strstr(csr, "BEGIN CERTIFICATE REQUEST"));
	return csr;
}

static void text_write(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	CHECK(f);
	fputs(text, f);
	fclose(f);
}

static char *text_read(const char *path)
{
	static char text[8192];
	FILE *f = fopen(path, "r");
	size_t n;

	CHECK(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	fclose(f);
	return text;
}

TEST(ca, files_are_private_and_never_overwritten)
{
	struct stat st;
	CLEANUP(free_ptr) char *before = NULL;
	char *csr;

	ca_make();
	CHECK(!stat(key, &st));
	EXPECT_EQ(st.st_mode & 0777, 0600);
	CHECK(!stat(cert, &st));
	EXPECT_EQ(st.st_mode & 0777, 0644);
	before = xstrdup(text_read(key));
	EXPECT_RC(ca_create(cert, key, "another"), -ERR_EXISTS);
	EXPECT_RC(ca_create(fixture_ca_path("fresh.crt"), key, "another"), -ERR_EXISTS);
	EXPECT(access(fixture_ca_path("fresh.crt"), F_OK));
	EXPECT_RC(ca_request(key, "node:x", &csr), -ERR_EXISTS);
	EXPECT(!csr);
	EXPECT_STR(text_read(key), before);
	EXPECT_RC(ca_request("/nonexistent-directory/key", "node:x", &csr), -ENOENT);
}

TEST(ca, signs_what_was_asked_for)
{
	CLEANUP(free_ptr) char *csr = request("a.key", "node:a");
	CLEANUP(free_ptr) char *leaf = NULL;
	struct stat st;
	int64_t seconds = 0;
	char fp[65], again[65];
	struct tls_ctx *t;

	ca_make();
	CHECK(!stat(fixture_ca_path("a.key"), &st));
	EXPECT_EQ(st.st_mode & 0777, 0600);
	EXPECT_OK(ca_sign(cert, key, csr, "node:a", "DNS:host-a.example,IP:10.0.0.1,IP:fd00::1", 30,
			  &leaf));
	text_write(fixture_ca_path("a.crt"), leaf);
	t = tls_ctx_create(cert, fixture_ca_path("a.crt"), fixture_ca_path("a.key"));
	EXPECT(t != NULL);
	tls_ctx_destroy(t);
	EXPECT_OK(ca_expires_in(fixture_ca_path("a.crt"), &seconds));
	EXPECT(seconds > 29 * 86400 && seconds <= 30 * 86400);
	EXPECT_OK(ca_expires_in(cert, &seconds));
	EXPECT(seconds > 19ll * 365 * 86400);
	EXPECT_OK(ca_fingerprint(fixture_ca_path("a.crt"), fp));
	EXPECT_EQ(strlen(fp), 64);
	EXPECT_OK(ca_fingerprint(cert, again));
	EXPECT(strcmp(fp, again));
	/* The pair must belong together. */
	free(request("b.key", "node:b"));
	EXPECT(!tls_ctx_create(cert, fixture_ca_path("a.crt"), fixture_ca_path("b.key")));
	EXPECT(!tls_ctx_create(fixture_ca_path("none"), fixture_ca_path("a.crt"),
			       fixture_ca_path("a.key")));
}

TEST(ca, an_expired_certificate_has_negative_time_left)
{
	CLEANUP(free_ptr) char *csr = request("old.key", "node:old");
	CLEANUP(free_ptr) char *leaf = NULL;
	int64_t seconds = 1;

	ca_make();
	EXPECT_OK(ca_sign(cert, key, csr, "node:old", NULL, 0, &leaf));
	text_write(fixture_ca_path("old.crt"), leaf);
	EXPECT_OK(ca_expires_in(fixture_ca_path("old.crt"), &seconds));
	EXPECT(seconds <= 0);
}

TEST(ca, refuses_another_name_and_broken_requests)
{
	CLEANUP(free_ptr) char *csr = request("c.key", "node:c");
	char *leaf = NULL, *p;

	ca_make();
	EXPECT_RC(ca_sign(cert, key, csr, "node:d", NULL, 30, &leaf), -ERR_AUTH);
	EXPECT_RC(ca_sign(cert, key, csr, "node:", NULL, 30, &leaf), -ERR_AUTH);
	EXPECT_RC(ca_sign(cert, key, "no request", "node:c", NULL, 30, &leaf), -ERR_INVALID);
	EXPECT_RC(ca_sign(cert, key, "", "node:c", NULL, 30, &leaf), -ERR_INVALID);
	/* A request whose signature does not fit: one base64 character of it changed. */
	p = strstr(csr, "-----END") - 12;
	*p = *p == 'A' ? 'B' : 'A';
	EXPECT(ca_sign(cert, key, csr, "node:c", NULL, 30, &leaf) < 0);
	EXPECT(!leaf);
}

TEST(ca, san_cannot_smuggle)
{
	static const char *const bad[] = { "",		"DNS:",		 "DNS:a,", "email:copy",
					   "DNS:a,URI:x", "IP:not-an-ip", "DNS:a b", "@section",
					   "DNS:a,dirName:s", "DNS:*" };
	CLEANUP(free_ptr) char *csr = request("e.key", "node:e");
	char *leaf = NULL;

	ca_make();
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
		if (ca_sign(cert, key, csr, "node:e", bad[i], 30, &leaf) != -ERR_INVALID)
			test_failed(__FILE__, __LINE__, "signed with san \"%s\"", bad[i]);
	EXPECT(!leaf);
}

TEST(ca, wrong_key_and_missing_files)
{
	CLEANUP(free_ptr) char *csr = request("f.key", "node:f");
	char *leaf = NULL, fp[65];
	int64_t seconds;

	ca_make();
	EXPECT_RC(ca_sign(cert, fixture_ca_path("f.key"), csr, "node:f", NULL, 30, &leaf), -ERR_INVALID);
	EXPECT_RC(ca_sign(fixture_ca_path("none"), key, csr, "node:f", NULL, 30, &leaf), -ERR_INVALID);
	EXPECT_RC(ca_sign(cert, fixture_ca_path("none"), csr, "node:f", NULL, 30, &leaf), -ERR_INVALID);
	EXPECT_RC(ca_fingerprint(key, fp), -ERR_INVALID);
	EXPECT_RC(ca_expires_in(fixture_ca_path("none"), &seconds), -ERR_INVALID);
}

/* A voter that takes the place of another gets the key. */
TEST(ca, a_key_is_installed_only_where_it_belongs)
{
	CLEANUP(free_ptr) char *csr = request("g.key", "node:g");
	CLEANUP(free_ptr) char *leaf = NULL;
	char to[5000];
	struct stat st;

	ca_make();
	snprintf(to, sizeof(to), "%s", fixture_ca_path("copy.key"));
	EXPECT_RC(ca_key_install(cert, to, text_read(fixture_ca_path("g.key"))), -ERR_AUTH);
	EXPECT_RC(ca_key_install(cert, to, "rubbish"), -ERR_AUTH);
	EXPECT_RC(ca_key_install(fixture_ca_path("none"), to, text_read(key)), -ERR_INVALID);
	EXPECT(access(to, F_OK) < 0);
	EXPECT_OK(ca_key_install(cert, to, text_read(key)));
	EXPECT_OK(stat(to, &st));
	EXPECT_EQ(st.st_mode & 07777, 0600);
	EXPECT_OK(ca_sign(cert, to, csr, "node:g", NULL, 30, &leaf));
	EXPECT_RC(ca_key_install(cert, to, text_read(key)), -ERR_EXISTS);
}

/* FIPS 180-2, "abc". */
TEST(ca, sha256)
{
	char out[65];

	ca_sha256_hex("abc", 3, out);
	EXPECT_STR(out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
