/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/base/log.h"
#include "node/loop/failpoint.h"
#include "tests/lib/test.h"

/* Each in a process of its own: what is asked for stays asked for. */
static int in_child(const char *text, int (*fn)(void))
{
	char why[1024];
	int status;
	pid_t pid = fork();

	if (!pid) {
		log_set_level(LOG_ERROR + 1);
		if (failpoints_parse(text, why, sizeof(why)))
			_exit(99);
		_exit(fn());
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int third_fails(void)
{
	for (int i = 1; i <= 5; i++)
		if ((FAILPOINT(units_written) != 0) != (i == 3))
			return i;
	return FAILPOINT(open_sealed) ? 10 : 0;
}

static int always_fails(void)
{
	return FAILPOINT(units_written) && FAILPOINT(units_written) && FAILPOINT(open_sealed) ? 0
											      : 1;
}

static int one_log_write(void)
{
	(void)FAILPOINT(log_write);
	return 7;
}

TEST(failpoint, fails_or_kills_where_and_when_it_is_asked_to)
{
	EXPECT(!failpoints_armed);
	EXPECT_EQ(FAILPOINT(units_written), 0);
	EXPECT_EQ(in_child(NULL, third_fails), 3);
	EXPECT_EQ(in_child("units_written:3=eio", third_fails), 0);
	EXPECT_EQ(in_child("open_sealed=eio,units_written=eio", always_fails), 0);
	EXPECT_EQ(in_child("log_write=kill", one_log_write), -SIGKILL);
	EXPECT_EQ(in_child("log_write:2=kill", one_log_write), 7);
	EXPECT_EQ(in_child("log_write=delay=1", one_log_write), 7);
}

TEST(failpoint, a_wrong_one_is_refused_with_the_names)
{
	static const char *const wrong[] = {
		"nowhere=kill",     "log_write",        "log_write=eio",  "log_write:0=kill",
		"log_write:x=kill", "log_write=delay=", "log_write=stop", ""};
	char why[1024];

	for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
		EXPECT_RC(failpoints_parse(wrong[i], why, sizeof(why)), -EINVAL);
		EXPECT(strstr(why, "units_flushed"));
	}
	EXPECT(!failpoints_armed);
}
