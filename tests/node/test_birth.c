/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/stat.h>
#include <unistd.h>

#include "net/ca.h"
#include "node/birth.h"
#include "tests/lib/test.h"

static struct config node_config(const char *name)
{
	CLEANUP(free_ptr) char *dir = xasprintf("%s/%s", test_dir(), name);
	CLEANUP(free_ptr)
	char *text = xasprintf("state_dir: %s\nname: %s\nlisten: 127.0.0.1:7400\n"
			       "admin_listen: 127.0.0.1:7401\n",
			       dir, name);
	struct config c;
	char err[512];

	EXPECT(mkdir(dir, 0700) == 0);
	EXPECT_OK(config_parse("test", text, strlen(text), &c, err));
	return c;
}

static unsigned mode_of(const char *path)
{
	struct stat st;

	EXPECT(stat(path, &st) == 0);
	return st.st_mode & 0777;
}

TEST(token, comes_back_as_it_went)
{
	struct birth_token t = {.admin = "10.0.0.1:7401", .expires_ms = 1234567890123}, u;
	char *text;

	uuid_make(&t.cluster);
	birth_secret_make(t.secret);
	memset(t.ca_sha256, 'a', 64);
	text = birth_token_encode(&t);
	EXPECT_OK(birth_token_decode(text, 1234567890122, &u));
	EXPECT(uuid_equal(&t.cluster, &u.cluster));
	EXPECT_STR(u.admin, t.admin);
	EXPECT_STR(u.secret, t.secret);
	EXPECT_STR(u.ca_sha256, t.ca_sha256);
	EXPECT_EQ(u.expires_ms, t.expires_ms);
	EXPECT_RC(birth_token_decode(text, 1234567890123, &u), -ETIMEDOUT);
	/* Cut or altered anywhere, it is refused or differs; it never crashes. */
	for (size_t i = 0; text[i]; i++) {
		char keep = text[i];

		text[i] = '\0';
		EXPECT(birth_token_decode(text, 0, &u) < 0);
		text[i] = '!';
		EXPECT(birth_token_decode(text, 0, &u) < 0);
		text[i] = keep == 'A' ? 'B' : 'A';
		EXPECT(birth_token_decode(text, 0, &u) <= 0);
		text[i] = keep;
	}
	free(text);
}

TEST(token, rubbish_is_refused)
{
	struct birth_token t;
	char *huge = xmalloc(5000);

	memset(huge, 'A', 4999);
	huge[4999] = '\0';
	EXPECT_RC(birth_token_decode("", 0, &t), -EINVAL);
	EXPECT_RC(birth_token_decode("e30", 0, &t), -EINVAL); /* {} */
	EXPECT_RC(birth_token_decode("hello world", 0, &t), -EINVAL);
	EXPECT_RC(birth_token_decode(huge, 0, &t), -EINVAL);
	free(huge);
}

TEST(token, secrets_differ_and_are_checked)
{
	char a[65], b[65];

	birth_secret_make(a);
	birth_secret_make(b);
	EXPECT(strcmp(a, b) != 0);
	EXPECT(birth_secret_valid(a));
	EXPECT(!birth_secret_valid("abc"));
	a[3] = 'G';
	EXPECT(!birth_secret_valid(a));
}

TEST(identity, is_absent_then_kept_then_raised)
{
	struct config c = node_config("id");
	struct identity id = {.number = 3, .incarnation = 7, .name = "n3", .cluster_name = "lab"}, got;

	EXPECT_RC(identity_load(c.state_dir, &got), -ERR_UNCLAIMED);
	uuid_make(&id.cluster);
	uuid_make(&id.node);
	EXPECT_OK(identity_save(c.state_dir, &id));
	EXPECT_OK(identity_load(c.state_dir, &got));
	EXPECT(uuid_equal(&got.cluster, &id.cluster) && uuid_equal(&got.node, &id.node));
	EXPECT_EQ(got.number, 3);
	EXPECT_STR(got.cluster_name, "lab");
	EXPECT_OK(identity_raise(c.state_dir, &got, 0));
	EXPECT_EQ(got.incarnation, 8);
	EXPECT_OK(identity_raise(c.state_dir, &got, 100)); /* the cluster knew a higher one */
	EXPECT_EQ(got.incarnation, 100);
	EXPECT_OK(identity_load(c.state_dir, &id));
	EXPECT_EQ(id.incarnation, 100);
	EXPECT(!id.removed && !id.raft_begun);
	EXPECT_OK(birth_raft_there(c.state_dir, &id));
	id.raft_begun = true; /* from now on its Raft log may not be gone */
	id.removed = true; /* it never starts its part again */
	id.recovery = 2;
	id.behind = 3;
	id.recovery_id = 0xfedcba98;
	id.recovery_term = 5;
	id.recovery_index = 1ull << 40;
	id.recovering = true;
	EXPECT_OK(identity_save(c.state_dir, &id));
	EXPECT_OK(identity_load(c.state_dir, &got));
	EXPECT(got.recovery_term == 5 && got.recovery_index == 1ull << 40 && got.recovering);
	EXPECT_RC(birth_raft_there(c.state_dir, &got), -ERR_CORRUPT);
	EXPECT(got.removed && got.recovery == 2 && got.behind == 3 && got.recovery_id == 0xfedcba98);
	config_free(&c);
}

TEST(identity, damage_is_told_from_absence)
{
	struct config c = node_config("damaged");
	CLEANUP(free_ptr) char *path = xasprintf("%s/identity.json", c.state_dir);
	static const char *const bad[] = {"", "{", "{\"format\":1}",
					  "{\"format\":1,\"number\":70000}"};
	struct identity got;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		EXPECT_OK(birth_file_write(path, bad[i], strlen(bad[i]), 0600));
		EXPECT_RC(identity_load(c.state_dir, &got), -ERR_CORRUPT);
	}
	EXPECT_OK(birth_file_write(path, "{\"format\":9}", 12, 0600));
	EXPECT_RC(identity_load(c.state_dir, &got), -ERR_VERSION);
	config_free(&c);
}

/* A digit that rotted leaves good JSON: it must not become another node, or one of the past. */
TEST(identity, every_flipped_bit_is_noticed_or_means_nothing)
{
	struct config c = node_config("flipped");
	CLEANUP(free_ptr) char *path = xasprintf("%s/identity.json", c.state_dir);
	struct identity id = {.number = 3, .incarnation = 7, .name = "n3", .cluster_name = "lab"}, got;
	char text[4096];
	size_t len;
	FILE *f;

	memset(&id.cluster, 0x11, sizeof(id.cluster));
	memset(&id.node, 0x22, sizeof(id.node));
	EXPECT_OK(identity_save(c.state_dir, &id));
	f = fopen(path, "r");
	len = fread(text, 1, sizeof(text), f);
	fclose(f);
	EXPECT(len > 100 && len < sizeof(text));
	for (size_t bit = 0; bit < len * 8; bit += 7) {
		text[bit / 8] ^= (char)(1 << bit % 8);
		EXPECT_OK(birth_file_write(path, text, len, 0600));
		text[bit / 8] ^= (char)(1 << bit % 8);
		if (identity_load(c.state_dir, &got) == 0)
			EXPECT(got.number == 3 && got.incarnation == 7 && !strcmp(got.name, "n3") &&
			       !got.removed && !memcmp(&got.cluster, &id.cluster, sizeof(id.cluster)) &&
			       !memcmp(&got.node, &id.node, sizeof(id.node)));
	}
	config_free(&c);
}

TEST(birth, init_makes_a_claimed_node_once)
{
	struct config c = node_config("init");
	struct identity id, again;
	struct birth_paths p;
	int64_t left;

	EXPECT_OK(birth_init(&c, "lab", &id));
	EXPECT_EQ(id.number, 1);
	EXPECT(id.bootstrap);
	birth_paths(c.state_dir, &p);
	EXPECT_EQ(mode_of(p.ca_key), 0600);
	EXPECT_EQ(mode_of(p.key), 0600);
	EXPECT(birth_has_ca_key(c.state_dir));
	EXPECT_OK(ca_expires_in(p.cert, &left));
	EXPECT(left > 86400 * 365);
	EXPECT_RC(birth_init(&c, "lab", &again), -ERR_CLAIMED);
	EXPECT_OK(identity_load(c.state_dir, &again));
	EXPECT(uuid_equal(&again.cluster, &id.cluster));
	config_free(&c);
}

/* Files without identity.json are what a crash in the middle of init leaves: init simply works
 * again. */
TEST(birth, init_after_half_an_init)
{
	struct config c = node_config("half");
	CLEANUP(free_ptr) char *path = xasprintf("%s/identity.json", c.state_dir);
	struct identity id;

	EXPECT_OK(birth_init(&c, "lab", &id));
	EXPECT(unlink(path) == 0);
	EXPECT_OK(birth_init(&c, "lab", &id));
	config_free(&c);
}

/* The three legs of a join, with the files passed by hand. */
TEST(birth, a_join_gives_a_certificate_of_the_same_ca)
{
	struct config one = node_config("one"), two = node_config("two");
	struct identity id, joined;
	struct birth_paths p1, p2;
	struct birth_peer peer = {.number = 1, .address = "127.0.0.1:7400"}, got[4];
	struct uuid node, again, other;
	CLEANUP(free_ptr) char *csr = NULL;
	CLEANUP(free_ptr) char *csr2 = NULL;
	CLEANUP(free_ptr) char *cert = NULL;
	CLEANUP(free_ptr) char *wrong = NULL;
	CLEANUP(free_ptr) char *ca = NULL;
	char f1[65], f2[65];
	size_t len;

	EXPECT_OK(birth_init(&one, "lab", &id));
	birth_paths(one.state_dir, &p1);
	birth_paths(two.state_dir, &p2);
	EXPECT_OK(birth_join_prepare(&two, false, &node, &csr));
	EXPECT_OK(birth_join_prepare(&two, true, &again, &csr2)); /* a re-run keeps the uuid */
	EXPECT(uuid_equal(&node, &again));
	uuid_make(&other);
	EXPECT_RC(birth_sign_node(one.state_dir, csr2, &other, two.advertise, &wrong), -ERR_AUTH);
	EXPECT_OK(birth_sign_node(one.state_dir, csr2, &node, two.advertise, &cert));
	EXPECT_OK(birth_file_read(p1.ca, &ca, &len));
	peer.uuid = id.node;
	struct birth_join j = {.cluster = id.cluster,
			       .number = 2,
			       .cluster_name = "lab",
			       .certificate = cert,
			       .ca = ca,
			       .peers = &peer,
			       .peer_count = 1,
			       .recovery = 3,
			       .recovery_id = 7};
	EXPECT_OK(birth_join_finish(&two, &j, &joined));
	EXPECT_EQ(joined.number, 2);
	EXPECT(!joined.bootstrap);
	EXPECT(joined.recovery == 3 && joined.recovery_id == 7);
	EXPECT(uuid_equal(&joined.node, &node));
	EXPECT(!birth_has_ca_key(two.state_dir));
	EXPECT_OK(ca_fingerprint(p1.ca, f1));
	EXPECT_OK(ca_fingerprint(p2.ca, f2));
	EXPECT_STR(f1, f2);
	EXPECT_EQ(birth_peers_load(two.state_dir, got, 4), 1);
	EXPECT_STR(got[0].address, "127.0.0.1:7400");
	EXPECT_RC(birth_join_prepare(&two, false, &again, &csr), -ERR_CLAIMED);
	/* What the last one said holds, also after a restart. */
	EXPECT(joined.witness && birth_roles(&two, &joined) == ROLE_VOTER);
	EXPECT_OK(identity_load(two.state_dir, &joined));
	EXPECT(joined.witness);
	config_free(&one);
	config_free(&two);
}

TEST(birth, finish_without_prepare_is_refused)
{
	struct config c = node_config("alone");
	struct birth_join j = {.number = 2, .cluster_name = "lab", .certificate = "x", .ca = "y"};
	struct identity id;

	uuid_make(&j.cluster);
	EXPECT_RC(birth_join_finish(&c, &j, &id), -ERR_INVALID);
	EXPECT_RC(identity_load(c.state_dir, &id), -ERR_UNCLAIMED);
	config_free(&c);
}
