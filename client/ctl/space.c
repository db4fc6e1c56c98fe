/* SPDX-License-Identifier: Apache-2.0 */
/* The capacity ledger for people: the same equations as in JSON, rounded. */
#include <inttypes.h>

#include "client/ctl/ctl.h"

void print_unrepaired(const struct json *counts)
{
	uint64_t n = json_u64(counts, "unrepaired", 0);

	if (n)
		printf("            up to %" PRIu64 " of them lack blocks in a copy: its disk group has "
		       "damage that is not repaired yet\n",
		       n);
}

void print_groups_known(const struct json *k, const char *before)
{
	if (json_u64(k, "groups_known", 0) < json_u64(k, "groups", 0))
		printf("%s(%" PRIu64 " of %" PRIu64 " disk groups known now)\n", before,
		       json_u64(k, "groups_known", 0), json_u64(k, "groups", 0));
}

/* "a − b − c = d": terms that are zero are left out. */
static void term(const char *sign, uint64_t bytes, const char *what)
{
	char text[24];

	if (bytes)
		printf(" %s %s %s", sign, bytes_text(bytes, text), what);
}

void print_reduction(const struct json *k, uint64_t stored)
{
	uint64_t logical = json_u64(k, "logical_bytes", 0);
	char text[24];

	printf("data        %s in all copies", bytes_text(logical, text));
	term("−", json_u64(k, "zero_bytes", 0), "zeroes");
	term("−", json_u64(k, "dedup_saved_bytes", 0), "duplicates");
	term("−", json_u64(k, "compression_saved_bytes", 0), "by compression");
	term("−", json_u64(k, "damaged_bytes", 0), "DAMAGED");
	printf(" = %s stored", bytes_text(stored, text));
	if (stored && stored < logical)
		printf(" (%.2f : 1)", (double)logical / (double)stored);
	printf("\n");
}

void print_raw(const struct json *k)
{
	char text[24];

	printf("raw         %s stored", bytes_text(json_u64(k, "data_used_bytes", 0), text));
	term("+", json_u64(k, "padding_bytes", 0) + json_u64(k, "summary_bytes", 0),
	     "padding and summaries");
	term("+", json_u64(k, "dead_bytes", 0), "to be collected");
	term("+", json_u64(k, "free_bytes", 0), "free");
	term("+", json_u64(k, "reserve_bytes", 0), "reserve");
	term("+", json_u64(k, "log_bytes", 0), "write log");
	term("+", json_u64(k, "layout_bytes", 0), "layout");
	printf(" = %s\n", bytes_text(json_u64(k, "raw_bytes", 0), text));
}

void logical_cell(struct table *t, const struct json *row)
{
	add_bytes(t, json_i64(row, "logical_bytes", 0));
}

void zero_cell(struct table *t, const struct json *row)
{
	add_bytes(t, json_i64(row, "zero_bytes", 0));
}

void dedup_cell(struct table *t, const struct json *row)
{
	add_bytes(t, json_i64(row, "dedup_saved_bytes", 0));
}

void compression_cell(struct table *t, const struct json *row)
{
	add_bytes(t, json_i64(row, "compression_saved_bytes", 0));
}

void row_stored_cell(struct table *t, const struct json *row)
{
	add_bytes(t, json_i64(row, "stored_bytes", 0));
}

void frees_cell(struct table *t, const struct json *row)
{
	char text[24];

	table_add(t, "%s%s", json_bool(row, "frees_exact", true) ? "" : "≥ ",
		  bytes_text(json_u64(row, "frees_if_deleted_bytes", 0), text));
}
