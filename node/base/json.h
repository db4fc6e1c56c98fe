/* SPDX-License-Identifier: Apache-2.0 */
/* jansson's door. A struct json is owned by whoever made it, until it is put into an object or
 * array, which takes it over. Any thread, one at a time per tree. Out of memory is fail-stop. */
#pragma once

#include "node/base/check.h"

struct json; /* opaque: any JSON value */

struct json *json_object_new(void);
struct json *json_array_new(void);
void json_free(struct json *j); /* NULL is fine */

/* Setters take over nothing but `value`. They overwrite. */
void json_put(struct json *obj, const char *key, struct json *value);
void json_drop(struct json *obj, const char *key); /* absent is fine */
void json_put_str(struct json *obj, const char *key, const char *value); /* NULL → null */
void json_put_u64(struct json *obj, const char *key, uint64_t value);
void json_put_i64(struct json *obj, const char *key, int64_t value);
void json_put_bool(struct json *obj, const char *key, bool value);
void json_put_real(struct json *obj, const char *key, double value);
void json_add(struct json *arr, struct json *value);
void json_append(struct json *arr, struct json *more); /* takes over the array `more`, NULL is fine */
void json_add_str(struct json *arr, const char *value);
void json_add_u64(struct json *arr, uint64_t value);
void json_add_i64(struct json *arr, int64_t value);

/* Getters: borrowed; a missing or mistyped key gives the default. */
const struct json *json_get(const struct json *obj, const char *key); /* NULL if absent */
const char *json_str(const struct json *obj, const char *key);	      /* NULL if absent */
/* The string at the key, copied with its NUL; false, and nothing copied: absent, or longer than fits. */
bool json_take_str(const struct json *obj, const char *key, char *out, size_t cap);
uint64_t json_u64(const struct json *obj, const char *key, uint64_t dflt);
int64_t json_i64(const struct json *obj, const char *key, int64_t dflt);
double json_get_real(const struct json *obj, const char *key, double dflt);
bool json_bool(const struct json *obj, const char *key, bool dflt);
bool json_has(const struct json *obj, const char *key);
bool json_has_null(const struct json *obj, const char *key); /* the member is there, and null */
size_t json_len(const struct json *arr); /* 0 when not an array */
const struct json *json_at(const struct json *arr, size_t i);
const char *json_as_str(const struct json *j); /* NULL when not a string */
uint64_t json_as_u64(const struct json *j, uint64_t dflt);
int64_t json_as_i64(const struct json *j, int64_t dflt);

/* Object members in insertion order: for (it = json_members(o); it; it = json_members_next(o, it)). */
void *json_members(const struct json *obj);
void *json_members_next(const struct json *obj, void *it);
const char *json_member_key(void *it);
const struct json *json_member_value(void *it);

/* NULL on malformed text, with a sentence (line, what) in err[err_cap]. */
struct json *json_parse(const char *text, size_t len, char *err, size_t err_cap);
char *json_print(const struct json *j, bool pretty); /* malloc'ed; caller frees */
struct json *json_dup(const struct json *j);	     /* deep */
