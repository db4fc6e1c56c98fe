/* SPDX-License-Identifier: Apache-2.0 */
/* The real log on RocksDB, and a node of one on the real loop: what was acknowledged survives a
 * kill, and a damaged log never opens, least of all as an empty one. Each phase is a process of its
 * own, because RocksDB's threads do not survive a fork. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster/consensus.h"
#include "cluster/raft_log.h"
#include "node/base/bytes.h"
#include "node/base/log.h"
#include "tests/lib/test.h"

/* Runs fn in a child; its value is the exit code. */
static int phase(int (*fn)(void *), void *arg)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		fflush(NULL);
		_exit(fn(arg));
	}
	EXPECT(waitpid(pid, &status, 0) == pid);
	EXPECT(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static const char *path(const char *name)
{
	static char buf[2][512];
	static unsigned next;
	char *out = buf[next++ % 2];

	snprintf(out, sizeof(buf[0]), "%s/%s", test_dir(), name);
	return out;
}

/* ---- The log itself ---- */

static struct raft_disk_entry entry(uint64_t term, const char *text)
{
	return (struct raft_disk_entry){
		.term = term, .type = 1, .data = (char *)text, .len = strlen(text)};
}

static int log_keeps(void *arg)
{
	struct raft_disk_entry e[3] = {entry(1, "one"), entry(2, ""), entry(2, "three")};
	struct raft_disk_entry first = entry(1, "first");
	struct raft_write w[2] = {{.kind = RAFT_WRITE_APPEND, .first = 2, .last = 4, .entry = e},
				  {.kind = RAFT_WRITE_TRUNCATE, .first = 4, .last = 4}};
	struct raft_write s = {.kind = RAFT_WRITE_SNAPSHOT,
			       .first = 1,
			       .last = 2,
			       .snapshot = {.index = 3,
					    .term = 2,
					    .conf_index = 1,
					    .conf = (char *)"conf",
					    .conf_len = 4,
					    .data = (char *)"data!",
					    .len = 5}};
	struct raft_disk_image i;
	struct raft_disk *d;

	EXPECT_OK(raft_log_open(arg, 9, &d));
	EXPECT_OK(d->ops->load(d, &i));
	EXPECT(i.term == 0 && i.count == 0 && i.first == 1 && !i.has_snapshot);
	EXPECT_OK(d->ops->bootstrap(d, &first));
	EXPECT_OK(d->ops->set_term(d, 2));
	EXPECT_OK(d->ops->set_vote(d, 5));
	EXPECT_OK(d->ops->write(d, w, 2));
	d->ops->close(d);

	EXPECT_OK(raft_log_open(arg, 9, &d));
	EXPECT_OK(d->ops->load(d, &i));
	EXPECT(i.term == 2 && i.vote == 5 && i.first == 1 && i.count == 3);
	EXPECT(i.entry[2].term == 2 && i.entry[2].len == 0 && i.entry[1].term == 1);
	EXPECT_MEM(i.entry[1].data, "one", 3);
	raft_disk_image_free(&i);
	EXPECT_OK(d->ops->set_term(d, 3)); /* takes the vote with it */
	EXPECT_OK(d->ops->write(d, &s, 1));
	d->ops->close(d);

	EXPECT_OK(raft_log_open(arg, 9, &d));
	EXPECT_OK(d->ops->load(d, &i));
	EXPECT(i.term == 3 && i.vote == 0 && i.has_snapshot && i.first == 3 && i.count == 1);
	EXPECT(i.snapshot.index == 3 && i.snapshot.conf_len == 4 && i.snapshot.len == 5);
	EXPECT_MEM(i.snapshot.data, "data!", 5);
	raft_disk_image_free(&i);
	d->ops->close(d);
	return 0;
}

TEST(raft_log, keeps_what_it_is_given)
{
	EXPECT_EQ(phase(log_keeps, (void *)path("keeps")), 0);
}

/* Many entries, so that there is a log file worth damaging. */
static int log_fill(void *arg)
{
	struct raft_disk_entry first = entry(1, "first");
	struct raft_disk *d;

	EXPECT_OK(raft_log_open(arg, 9, &d));
	EXPECT_OK(d->ops->bootstrap(d, &first));
	for (uint64_t i = 2; i < 50; i++) {
		struct raft_disk_entry e =
			entry(1, "some bytes of a command that is not too short");
		struct raft_write w = {
			.kind = RAFT_WRITE_APPEND, .first = i, .last = i, .entry = &e};

		EXPECT_OK(d->ops->write(d, &w, 1));
	}
	return 0; /* without close: the entries are in the write-ahead log */
}

struct open_as {
	const char *dir;
	uint16_t node;
	int rc;
	size_t count; /* entries, if it opens; 0: any */
};

static int log_open_fails(void *arg)
{
	struct open_as *a = arg;
	struct raft_disk_image i;
	struct raft_disk *d;
	int rc = raft_log_open(a->dir, a->node, &d);

	if (rc == 0)
		rc = d->ops->load(d, &i);
	if (rc == 0)
		fprintf(stderr, "opened with %zu entries\n", i.count);
	return rc == a->rc && (rc < 0 || !a->count || a->count == i.count) ? 0 : 1;
}

static int opens_with(const char *dir, uint16_t node, int rc)
{
	return phase(log_open_fails, &(struct open_as){dir, node, rc, 0});
}

/* Calls fn with each file of dir/db whose name ends so. */
static unsigned each_file(const char *dir, const char *suffix, void (*fn)(const char *file))
{
	char db[512], file[1024];
	struct dirent *e;
	unsigned n = 0;
	DIR *d;

	snprintf(db, sizeof(db), "%s/db", dir);
	d = opendir(db);
	EXPECT(d != NULL);
	while ((e = readdir(d))) {
		size_t len = strlen(e->d_name), want = strlen(suffix);

		if (len < want || strcmp(e->d_name + len - want, suffix))
			continue;
		snprintf(file, sizeof(file), "%s/%s", db, e->d_name);
		fn(file);
		n++;
	}
	closedir(d);
	return n;
}

static void flip_middle(const char *file)
{
	struct stat st;
	int fd = open(file, O_RDWR);
	uint8_t byte;

	EXPECT(fd >= 0 && fstat(fd, &st) == 0);
	if (st.st_size > 100) {
		EXPECT(pread(fd, &byte, 1, st.st_size / 2) == 1);
		byte ^= 0x10;
		EXPECT(pwrite(fd, &byte, 1, st.st_size / 2) == 1);
	}
	close(fd);
}

static void flip_near_end(const char *file)
{
	struct stat st;
	int fd = open(file, O_RDWR);
	uint8_t byte = 0xee;

	EXPECT(fd >= 0 && fstat(fd, &st) == 0);
	if (st.st_size > 100)
		EXPECT(pwrite(fd, &byte, 1, st.st_size - 5) == 1);
	close(fd);
}

static void remove_file(const char *file)
{
	(void)unlink(file); /* "." and ".." stay */
}

TEST(raft_log, damage_in_the_middle_does_not_open)
{
	const char *dir = path("flip");

	EXPECT_EQ(phase(log_fill, (void *)dir), 0);
	EXPECT_EQ(opens_with(dir, 9, 0), 0);
	EXPECT(each_file(dir, ".sst", flip_middle) + each_file(dir, ".log", flip_middle) > 0);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0); /* and not the second time either */
}

TEST(raft_log, damage_of_the_last_entry_does_not_open)
{
	const char *dir = path("flip-end");

	EXPECT_EQ(phase(log_fill, (void *)dir), 0);
	EXPECT(each_file(dir, ".log", flip_near_end) > 0);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
}

TEST(raft_log, vanished_database_does_not_start_empty)
{
	const char *dir = path("gone");

	EXPECT_EQ(phase(log_fill, (void *)dir), 0);
	EXPECT(each_file(dir, "", remove_file) > 3);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
}

TEST(raft_log, belongs_to_one_node)
{
	const char *dir = path("foreign");

	EXPECT_EQ(phase(log_fill, (void *)dir), 0);
	EXPECT_EQ(opens_with(dir, 8, -ERR_FOREIGN), 0);
}

/* ---- Synced data that is gone ---- */

#define FILL_ENTRIES 49
#define FILL_BATCHES (FILL_ENTRIES + 1) /* and the head record */

static int opens_with_count(const char *dir, size_t count)
{
	return phase(log_open_fails, &(struct open_as){dir, 9, 0, count});
}

static void copy_all(const char *from, const char *to)
{
	char cmd[1200];

	snprintf(cmd, sizeof(cmd), "rm -rf '%s' && cp -a '%s' '%s'", to, from, to);
	EXPECT_EQ(system(cmd), 0);
}

/* The write-ahead log, and where its records start. */
static struct {
	char file[1024];
	uint8_t data[32768]; /* its first block, and all there is */
	size_t len, record[256], records;
} wal;

static void wal_keep(const char *file)
{
	int fd = open(file, O_RDONLY);
	ssize_t n;

	EXPECT(fd >= 0);
	n = read(fd, wal.data, sizeof(wal.data));
	EXPECT(n >= 0 && n < (ssize_t)sizeof(wal.data));
	close(fd);
	snprintf(wal.file, sizeof(wal.file), "%s", file);
	wal.len = (size_t)n;
	wal.records = 0;
	for (size_t at = 0; at + 7 <= wal.len; at += 7 + get_le16(wal.data + at + 4))
		wal.record[wal.records++] = at;
}

static void put_file(const char *file, off_t at, const void *p, size_t n)
{
	int fd = open(file, O_RDWR);

	EXPECT(fd >= 0 && pwrite(fd, p, n, at) == (ssize_t)n);
	close(fd);
}

TEST(raft_log, emptied_or_zeroed_write_ahead_log_does_not_open)
{
	static const uint8_t zeros[sizeof(wal.data)];
	const char *whole = path("zero"), *dir = path("zero-now");

	EXPECT_EQ(phase(log_fill, (void *)whole), 0);
	for (unsigned k = 0; k < 4; k++) {
		copy_all(whole, dir);
		EXPECT_EQ(each_file(dir, ".log", wal_keep), 1);
		EXPECT_EQ(wal.records, FILL_BATCHES);
		size_t from = k == 3 ? 0 : wal.record[k == 0 ? 0 : k == 1 ? 25 : FILL_BATCHES - 1];

		if (k == 3)
			EXPECT(truncate(wal.file, 0) == 0);
		else
			put_file(wal.file, (off_t)from, zeros, wal.len - from);
		EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
		EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	}
	EXPECT_EQ(opens_with_count(whole, FILL_ENTRIES), 0);
}

TEST(raft_log, cut_write_ahead_log_does_not_open)
{
	static const unsigned at[] = {1, 2, 30, FILL_BATCHES - 1};
	const char *whole = path("cut"), *dir = path("cut-now");

	EXPECT_EQ(phase(log_fill, (void *)whole), 0);
	for (unsigned k = 0; k < 3 * ARRAY_LEN(at); k++) {
		copy_all(whole, dir);
		EXPECT_EQ(each_file(dir, ".log", wal_keep), 1);
		/* between two records, within a header, within the data */
		EXPECT(truncate(wal.file, (off_t)wal.record[at[k / 3]] + (k % 3) * 6) == 0);
		EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	}
	copy_all(whole, dir);
	EXPECT_EQ(each_file(dir, ".log", wal_keep), 1);
	EXPECT(truncate(wal.file, (off_t)wal.len - 1) == 0);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
}

TEST(raft_log, flipped_length_of_the_last_batch_does_not_open)
{
	static const unsigned bits[] = {0, 3, 7, 8, 12, 15};
	const char *whole = path("length"), *dir = path("length-now");

	EXPECT_EQ(phase(log_fill, (void *)whole), 0);
	for (unsigned k = 0; k < ARRAY_LEN(bits); k++) {
		copy_all(whole, dir);
		EXPECT_EQ(each_file(dir, ".log", wal_keep), 1);
		size_t at = wal.record[wal.records - 1] + 4 + bits[k] / 8;

		wal.data[at] ^= (uint8_t)(1 << bits[k] % 8);
		put_file(wal.file, (off_t)at, &wal.data[at], 1);
		EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	}
}

static const char *mark_of(const char *dir)
{
	static char buf[600];

	snprintf(buf, sizeof(buf), "%s/mark", dir);
	return buf;
}

static void mark_put(const char *dir, const uint8_t mark[8192])
{
	put_file(mark_of(dir), 0, mark, 8192);
}

static void mark_get(const char *dir, uint8_t mark[8192])
{
	int fd = open(mark_of(dir), O_RDONLY);

	EXPECT(fd >= 0 && read(fd, mark, 8192) == 8192);
	close(fd);
}

TEST(raft_mark, is_as_specified)
{
	static uint8_t mark[8192];
	const char *dir = path("golden");

	EXPECT_EQ(phase(log_fill, (void *)dir), 0);
	mark_get(dir, mark);
	/* from the start, and of the last batch */
	EXPECT_GOLDEN(mark, 32,
		      "524146544d41524b 0100 0900 00000000 0100000000000000 48643951c25f4f97");
	EXPECT_GOLDEN(mark + 4096, 32,
		      "524146544d41524b 0100 0900 00000000 3200000000000000 cafe3613934f1b1e");
	for (unsigned i = 32; i < 4096; i++)
		EXPECT(mark[i] == 0 && mark[4096 + i] == 0);
}

TEST(raft_mark, must_be_there_and_whole)
{
	static uint8_t kept[8192], mark[8192];
	const char *dir = path("mark");

	EXPECT_EQ(phase(log_fill, (void *)dir), 0);
	mark_get(dir, kept);
	EXPECT(unlink(mark_of(dir)) == 0);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	EXPECT(close(open(mark_of(dir), O_CREAT | O_RDWR, 0600)) == 0); /* empty */
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	for (unsigned at = 0; at < 32; at++) { /* both slots */
		memcpy(mark, kept, sizeof(mark));
		mark[at] ^= 4;
		mark[4096 + at] ^= 4;
		mark_put(dir, mark);
		if (at % 5 == 0 || at == 31)
			EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	}
	memcpy(mark, kept, sizeof(mark));
	mark[4096 + 16] ^= 1; /* the newer slot: a torn write */
	mark_put(dir, mark);
	EXPECT_EQ(opens_with_count(dir, FILL_ENTRIES), 0);
	mark_get(dir, mark); /* and is whole again */
	EXPECT_EQ(get_le64(mark + 4096 + 16), FILL_BATCHES);
	memset(mark, 0, sizeof(mark));
	memcpy(mark, kept, 4096); /* older than the database, as after a power loss */
	mark_put(dir, mark);
	EXPECT_EQ(opens_with_count(dir, FILL_ENTRIES), 0);
}

/* A batch above the mark was not acknowledged: what is torn of it is a crash. */
TEST(raft_mark, torn_batch_above_it_is_dropped)
{
	static uint8_t mark[8192];
	const char *whole = path("torn"), *dir = path("torn-now");

	EXPECT_EQ(phase(log_fill, (void *)whole), 0);
	mark_get(whole, mark);
	memset(mark + 4096, 0, 4096);
	mark_put(whole, mark);
	for (unsigned k = 0; k < 3; k++) {
		copy_all(whole, dir);
		EXPECT_EQ(each_file(dir, ".log", wal_keep), 1);
		EXPECT(truncate(wal.file, (off_t)wal.record[FILL_BATCHES - 1] + k * 4) == 0);
		EXPECT_EQ(opens_with_count(dir, FILL_ENTRIES - 1), 0);
	}
}

/* Over the size at which a table is made; what comes after it is in the log again. */
static int log_fill_large(void *arg)
{
	struct raft_disk_entry first = entry(1, "first"), e = {.term = 1, .type = 1};
	struct raft_disk *d, *other;

	EXPECT_OK(raft_log_open(arg, 9, &d));
	EXPECT_RC(raft_log_open(arg, 9, &other), -ERR_BUSY);
	EXPECT_OK(d->ops->bootstrap(d, &first));
	e.len = 3u << 20;
	e.data = xcalloc(1, e.len);
	for (uint64_t i = 2; i < 200; i++) {
		struct raft_write w = {
			.kind = RAFT_WRITE_APPEND, .first = i, .last = i, .entry = &e};

		if (i == 6)
			e.len = 10;
		EXPECT_OK(d->ops->write(d, &w, 1));
	}
	free(e.data);
	return 0;
}

/* The slots take turns, and only after a sync: one is always whole. */
static int mark_takes_turns(void *arg)
{
	static uint8_t mark[8192];
	struct raft_disk_entry e = entry(1, "e");
	uint64_t slot[2] = {0, 0};
	struct raft_disk *d;
	unsigned at = 0, turns = 0;

	EXPECT_OK(raft_log_open(arg, 9, &d));
	EXPECT_OK(d->ops->bootstrap(d, &e));
	for (uint64_t i = 2; i < 2 + 3 * 64; i++) {
		struct raft_write w = {
			.kind = RAFT_WRITE_APPEND, .first = i, .last = i, .entry = &e};

		EXPECT_OK(d->ops->write(d, &w, 1));
		mark_get(arg, mark);
		slot[0] = get_le64(mark + 16);
		slot[1] = get_le64(mark + 4096 + 16);
		EXPECT_EQ(slot[0] > slot[1] ? slot[0] : slot[1], i + 1);
		turns += at != (slot[1] > slot[0]);
		at = slot[1] > slot[0];
	}
	EXPECT_EQ(turns, 1 + 3); /* the first is from the start */
	EXPECT_OK(d->ops->settle(d));
	EXPECT_OK(d->ops->settle(d)); /* nothing to do: no turn */
	EXPECT_OK(d->ops->set_term(d, 2));
	mark_get(arg, mark);
	EXPECT_EQ(get_le64(mark + (at ? 0 : 4096) + 16), 2 + 3 * 64 + 1);
	EXPECT_EQ(get_le64(mark + (at ? 4096 : 0) + 16), 2 + 3 * 64);
	d->ops->close(d);
	return 0;
}

TEST(raft_mark, slots_take_turns)
{
	EXPECT_EQ(phase(mark_takes_turns, (void *)path("turns")), 0);
}

static void keep_out(const char *file)
{
}

static void empty(const char *file)
{
	EXPECT(truncate(file, 0) == 0);
}

TEST(raft_mark, counts_on_after_a_table_was_made)
{
	const char *whole = path("large"), *dir = path("large-now");

	EXPECT_EQ(phase(log_fill_large, (void *)whole), 0);
	EXPECT_EQ(each_file(whole, ".sst", keep_out), 1);
	EXPECT_EQ(each_file(whole, ".log", keep_out), 1); /* never two with something in them */
	copy_all(whole, dir);
	EXPECT_EQ(each_file(dir, ".log", empty), 1);
	EXPECT_EQ(opens_with(dir, 9, -ERR_CORRUPT), 0);
	EXPECT_EQ(opens_with_count(whole, 199), 0);
}

/* ---- A node of one on the real loop ---- */

struct life {
	struct loop *loop;
	struct consensus *c;
	int acks; /* pipe; -1: only look */
	uint64_t next;
	bool proposing;
	struct wait wait[32];
	struct proposal proposal[32];
	uint8_t seen[100000];
	struct timer timer;
	bool stopped;
};
static struct life life;

static bool life_send(void *ctx, uint16_t to, const void *msg, size_t len)
{
	return false;
}

static void life_apply(void *ctx, uint64_t index, const void *cmd, size_t len,
		       struct command_result *out)
{
	uint64_t id = get_le64(cmd);

	EXPECT(len == 200 && id < sizeof(life.seen));
	life.seen[id] = 1;
	out->id = id;
}

static void life_snapshot(void *ctx, struct writer *w)
{
	write_bytes(w, life.seen, sizeof(life.seen));
}

static int life_restore(void *ctx, const void *data, size_t len, uint64_t index)
{
	EXPECT_EQ(len, sizeof(life.seen));
	memcpy(life.seen, data, len);
	return 0;
}

static void life_propose(unsigned slot)
{
	uint8_t cmd[200] = {0};

	put_le64(cmd, life.next++);
	EXPECT_EQ(
		consensus_propose(life.c, &life.proposal[slot], cmd, sizeof(cmd), &life.wait[slot]),
		PENDING);
}

static void life_acked(struct wait *w, int rc)
{
	unsigned slot = (unsigned)(w - life.wait);

	EXPECT_OK(rc);
	EXPECT(write(life.acks, &life.proposal[slot].result.id, 8) == 8);
	life_propose(slot);
}

static void life_changed(void *ctx)
{
	if (!consensus_is_leader(life.c) || life.acks < 0 || life.proposing)
		return;
	for (unsigned i = 0; i < ARRAY_LEN(life.wait); i++) {
		life.wait[i].resume = life_acked;
		life_propose(i);
	}
	life.proposing = true;
}

static const struct consensus_hooks life_hooks = {
	.send = life_send,
	.apply = life_apply,
	.snapshot = life_snapshot,
	.restore = life_restore,
	.changed = life_changed,
};

static void life_start(const char *dir)
{
	struct consensus_config cfg = {
		.id = 1, .dir = dir, .bootstrap = true, .hooks = &life_hooks};

	cfg.loop = life.loop = loop_create("test", 8);
	EXPECT(life.loop != NULL);
	EXPECT_OK(consensus_start(&cfg, &life.c));
}

static int writer_run(void *arg)
{
	life_start(arg);
	loop_run(life.loop);
	return 0;
}

static void on_stopped(void *ctx)
{
	life.stopped = true;
	loop_stop(life.loop);
}

static void look(struct timer *t)
{
	struct consensus_status st;

	consensus_status(life.c, &st);
	if (st.role != CONSENSUS_LEADER || st.applied != st.last || st.applied == 0)
		timer_set(t, 1000);
	else
		consensus_stop(life.c, on_stopped);
}

/* Starts on what is there and stops again; then life.seen has what was applied. */
static int reader_run(void *arg)
{
	uint64_t n;
	int fd = life.acks;

	life.acks = -1;
	life_start(arg);
	timer_init(&life.timer, life.loop, look);
	timer_set(&life.timer, 1000);
	loop_run(life.loop);
	EXPECT(life.stopped);
	timer_fini(&life.timer);
	loop_destroy(life.loop);
	EXPECT(lseek(fd, 0, SEEK_SET) == 0);
	while (read(fd, &n, 8) == 8)
		EXPECT(life.seen[n]);
	return 0;
}

TEST(node, acknowledged_commands_survive_a_kill)
{
	const char *dir = path("life");
	uint64_t total = 0;

	life.acks = open(path("acks"), O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
	EXPECT(life.acks >= 0);
	for (unsigned round = 0; round < 4; round++) {
		struct stat st = {0};
		pid_t pid = fork();
		int status;

		if (pid == 0)
			_exit(writer_run((void *)dir));
		/* enough for a snapshot from the second round on */
		do {
			usleep(2000); /* nobody to wait for: what it writes is a file, and it does not end */
			EXPECT(fstat(life.acks, &st) == 0);
			EXPECT(waitpid(pid, &status, WNOHANG) == 0);
		} while (st.st_size / 8 < (off_t)total + 700);
		kill(pid, SIGKILL);
		EXPECT(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
		EXPECT(fstat(life.acks, &st) == 0);
		total = (uint64_t)st.st_size / 8;
		life.next += 20000; /* numbers that were not used yet */
		EXPECT_EQ(phase(reader_run, (void *)dir), 0);
	}
	close(life.acks);
}
