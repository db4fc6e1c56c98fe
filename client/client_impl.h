/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the client, shared by client.c, volume.c, part.c and route.c.
 *
 *   volume_io ── vio ──┬── part ── object ── stream (node, shard) ── link ── conn
 *   (caller's)  (pool) └── part ── object ── hooks->local
 *
 * A vio is one volume_io being done; a part is its share of one stripe unit: one OP_IO, at most 1 MiB,
 * one object. Both come from arrays made at start. One loop. */
#pragma once

#include "client/client.h"
#include "net/link.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/loop.h"

#define CLIENT_WINDOW 128u	    /* unanswered writes per object; replicas remember RETRY_WINDOW = 256 */
#define CLIENT_RETRY_US 50000u	    /* design: a map delta or 50 ms */
#define CLIENT_ATTACH_RETRY_US 200000u
#define CLIENT_HELD_US 1000000u	    /* a refused attach is not proposed again for so long */
#define CLIENT_STUCK_US 1000000u    /* a primary's node that says nothing for so long is gone round */
#define CLIENT_FORWARDS 512u
#define CLIENT_TICK_US 50000u
#define CLIENT_SWEEP_US 10000000u
#define CLIENT_IDLE_US 60000000u    /* a data connection without I/O for so long is closed */
#define CLIENT_BYTES_MAX (32u << 20) /* payload of admitted I/O: half of a pool of 64 MiB */
#define VIO_PARTS_MAX 8u	    /* parts of one volume_io in flight */
#define STREAM_SEND_LIMIT (4u << 20)

struct stream;

/* One object of an open volume; made at its first I/O, kept until the volume is closed. */
struct vobject {
	struct volume *volume;
	uint64_t id;
	uint64_t next_request;	/* request numbers count per object and attachment */
	struct list writes;	/* struct part.order: unanswered writes, oldest first */
	struct list parts;	/* struct part.by_object: all that are under way */
	struct list window;	/* struct part.link: wait for the oldest write */
	struct list changed;	/* in client.changed */
	/* The route by the map; valid while route_gen equals the client's. */
	uint64_t route_gen;
	struct stream *stream; /* NULL: local */
	uint32_t epoch, replica_gen;
};

enum part_stage {
	PART_FREE,
	PART_WINDOW, /* too many unanswered writes on the object */
	PART_LINK,   /* the connection is not up, or full */
	PART_SENT,   /* at a node */
	PART_LOCAL,  /* at this node's own primary */
	PART_RETRY,  /* told RETRY, or the connection was lost */
	PART_READY,  /* goes out this turn */
	PART_DONE,   /* block status that waits for the extents before it */
};

struct part {
	struct list link;      /* free, window, stream waiting or sent, retries, ready */
	struct list by_vio;    /* vio.parts, in order of offset */
	struct list by_object; /* vobject.parts */
	struct list order;     /* vobject.writes */
	struct client *client;
	struct vio *vio;	/* NULL: nobody waits any more, the executor still has to answer */
	struct vobject *object; /* NULL with it */
	struct stream *stream;
	uint64_t id;	  /* frame id: count << 32 | index, so that a late answer finds nothing */
	uint64_t due_us;  /* PART_RETRY */
	unsigned slice;	  /* index in volume_io.slices */
	uint8_t stage, last_status;
	bool numbered, forward; /* forward: goes to a node that passes it on */
	struct wait wait; /* PART_LOCAL */
	struct io_exec exec;
	struct io_request request;
	struct io_reply reply;
};

struct vio {
	struct list link;    /* volume.vios, or free */
	struct list starved; /* client.starved */
	struct list parts;
	struct volume *volume;
	struct volume_io *io;
	uint64_t next, end;	/* what is not yet handed to parts */
	unsigned in_flight, slices;
	unsigned in_slice, in_offset; /* write payload: where the next part begins */
	int error;
	bool busy; /* vio_run is on the stack */
	uint64_t started_us;
};

enum attach_state { ATTACH_NONE, ATTACH_WANTED, ATTACH_ASKED, ATTACH_OK, ATTACH_FENCED, ATTACH_DETACHING };

struct resize_notice {
	struct list link;
	void (*fn)(void *arg, uint64_t size);
	void *arg;
};

struct volume {
	struct list link; /* client.volumes: at most one per id and mode */
	struct client *client;
	uint32_t id;
	char name[NAME_MAX_LEN + 1];
	uint64_t size;
	unsigned refs, ios; /* ios: volume_io not yet resumed */
	bool shared, gone;
	int aborted;
	struct vobject **objects;
	uint32_t object_count;
	struct list vios;	 /* admitted */
	struct list attach_wait; /* struct volume_io.link */
	struct list closers;
	struct list notices;

	enum attach_state attach_state;
	uint32_t attachment, attach_epoch;
	uint64_t attach_due_us, held_until_us;
	uint32_t renew_round; /* the last one it was in */
	char held_by[256];
	struct wait attach_done;
	struct command command;
	struct command_result result;
};

/* A volume_close that is to be resumed. */
struct closer {
	struct list link;
	struct wait *wait;
};

struct stream {
	struct peer *peer;
	unsigned index;
	struct link *link; /* NULL: not in use */
	struct conn *conn; /* NULL: not up */
	struct list waiting, sent;
	uint64_t used_us;
	uint64_t owes_us; /* since when something is unanswered and nothing came; 0: nothing is */
	bool stuck;	  /* for CLIENT_STUCK_US: other nodes are asked to forward */
};

struct peer {
	struct list link;
	struct client *client;
	uint16_t node, shards;
	uint32_t incarnation;
	char address[64];
	struct stream *streams; /* [shards] */
};

struct client {
	struct client_config cfg;
	struct part *parts;
	struct vio *vios;
	struct list parts_free, vios_free;
	struct list volumes, peers;
	struct list queue;   /* struct volume_io.link: wait for a vio or for payload budget */
	struct list starved; /* vios that wait for parts or memory */
	struct list retries; /* parts, by due time */
	struct list ready;   /* parts that go out this turn */
	struct list changed; /* vobjects whose map record changed */
	struct list closers; /* to resume this turn */
	bool kick_all;	     /* nodes or groups changed: look at every object */
	bool attention;	     /* a volume wants attach, detach or abort */
	uint64_t route_gen, bytes, part_count;
	size_t parts_fresh; /* parts from here on were never used */
	unsigned parts_used, deadlines;
	struct turn_end turn; /* LOG phase, so that connections still send in the same turn */
	struct timer tick, sweep;
	struct pool_waiter memory;
	bool memory_waiting;
	struct client_stats stats;
	struct pool forwards; /* requests of others, on their way to a primary: forward.c */
	struct list forwarded;

	struct timer renew_timer; /* armed while something is attached */
	uint64_t renew_at_us;
	uint32_t renew_round;
	bool renew_busy, renew_failing; /* a renewal is under way; the last one failed */
	unsigned renew_count;
	uint32_t renew_ids[RENEW_MAX];
	struct wait renew_wait;
	struct command_result renew_result;
};

/* client.c */
void client_arm(struct client *c); /* client's end-of-turn work */
void client_tick_arm(struct client *c);
struct part *part_get(struct client *c);
void part_put(struct part *p);

/* volume.c */
struct vobject *volume_object(struct volume *v, uint32_t index);
void volume_map_changed(struct volume *v);
void volume_fence(struct volume *v);
void volume_attend(struct volume *v); /* attach, detach, abort, drop: from the end of a turn */
bool volume_io_writes(uint8_t kind);

/* renew.c */
void renew_init(struct client *c);
void renew_fini(struct client *c);
void renew_schedule(struct client *c); /* something was attached, or has another time to live */

/* vio.c */
void vio_resume_io(struct volume *v, struct volume_io *io, int rc);
void vio_admit(struct client *c);
void vio_run(struct vio *v);
void vio_part_done(struct vio *v, struct part *p);
void vio_abort(struct vio *v, int rc);
int vio_begin(struct volume *v, struct volume_io *io); /* 0, <0 or PENDING */

/* part.c */
bool part_start(struct vio *v); /* the next part of v; false: no part or no memory */
void part_number(struct part *p);
void part_send(struct part *p);
void part_answered(struct part *p);
void part_retry(struct part *p, uint8_t status);
void part_fail(struct part *p, int rc);
void part_abandon(struct part *p); /* nobody waits for it any more */
void part_make_ready(struct part *p);

/* route.c */
/* Puts p on its way by the map. */
/* The data connection to the object's primary, dialled if need be; NULL: none now, or *local. */
struct stream *route_primary_stream(struct client *c, const struct map_object *mo, bool *local);
void route_stream_owes(struct stream *s); /* something was sent on it */
bool route_tick(struct client *c, uint64_t now); /* looks for stuck streams; false: nothing is owed */
void route_part(struct part *p);
void route_object_changed(struct vobject *o);
void route_node_changed(struct client *c, uint16_t node);
void route_sweep(struct client *c, uint64_t idle_us);
void route_fini(struct client *c);

/* forward.c */
void forward_init(struct client *c);
void forward_fini(struct client *c);
void forward_answered(struct client *c, struct stream *s, const struct frame *f);
void forward_lost(struct client *c, struct stream *s); /* the connection is gone */
