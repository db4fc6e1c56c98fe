/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a connection: shared by conn.c (life, deadlines), conn_rx.c (bytes to frames) and conn_tx.c
 * (frames to gathered sends). Nobody else includes this. */
#pragma once

#include "net/conn.h"

#define CONN_MAGIC 0x6e6e6f63u
#define CONN_TICK_US 500000u
#define CONN_STALL_TICKS 10u  /* × tick = 5 s without progress */
#define CONN_LINGER_TICKS 2u

/* One run of bytes to send: from a referenced buffer, or (buf NULL) the next `len` bytes of the ring. */
struct tx_seg {
	struct buf *buf;
	const uint8_t *data;
	uint32_t len;
};

/* Headers and bodies are copied into a byte ring; payloads are referenced. Both rings double when they
 * are full and stay: in steady state nothing is allocated. Positions count up for ever; a position
 * modulo the (power of two) size is the place. */
struct tx {
	uint8_t *ring;
	uint64_t ring_size, ring_head, ring_tail;
	struct tx_seg *segs;
	uint64_t seg_size, seg_head, seg_tail;
	size_t queued;
	uint64_t sent, plain_at; /* bytes ever sent; where TLS ends if plain_pending */
	bool plain_pending, blocked, was_full;
};

/* Bytes land in `stage`; [head, tail) is not parsed yet. A body too long for it goes to `body` (heap;
 * control traffic only), a payload too long for it to `pay`. */
struct rx {
	struct buf *stage;
	uint32_t head, tail, peak; /* peak: the largest single receive into this stage */
	bool big_next;		   /* size of the next stage */
	bool retry;		   /* memory ran out: parse again before receiving */
	uint8_t *body;		   /* header and body */
	uint32_t body_got, body_want;
	struct buf *pay;
	uint32_t pay_got;
	struct wire_header pay_header;
	uint64_t received;
	uint32_t body_max, payload_max;
};

struct conn {
	uint32_t magic;
	int fd;
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_session *tls;
	const struct conn_ops *ops;
	void *data;
	size_t send_limit;
	bool handshaking, closed, detached, finished;
	bool shutting_down; /* conn_shutdown: the queue is going out */
	bool lingering;	    /* it is out: waits for the peer's end */
	bool again_posted, memory_waiting;
	int reason;
	unsigned tx_stall, rx_stall, linger_ticks;
	uint64_t tx_seen, rx_seen;
	struct fdwatch watch;
	struct timer tick;
	struct turn_end end;
	struct post again;
	struct pool_waiter memory;
	struct tx tx;
	struct rx rx;
	char peer_name[128], peer_address[64];
};

void conn_tick_arm(struct conn *c);	   /* something is outstanding */
void conn_watch_update(struct conn *c);	   /* fd events wanted now */
void conn_run_again(struct conn *c);	   /* conn_rx_run in the next turn, without waiting for the fd */
void conn_memory_wait(struct conn *c);	   /* stop reading until the pool has memory */
void conn_drop_tls(struct conn *c);

void conn_tx_flush(struct conn *c);
void conn_tx_fini(struct conn *c);

void conn_rx_run(struct conn *c);
bool conn_rx_incomplete(const struct conn *c);
void conn_rx_release_idle(struct conn *c, bool even_shared);
void conn_rx_fini(struct conn *c);
