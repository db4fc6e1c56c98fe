/* SPDX-License-Identifier: Apache-2.0 */
/* The network between virtual hosts: TCP as product code sees it through sockets. Bytes arrive in
 * order and once, late, in pieces of any size; a direction may be silent for a while (what was sent
 * comes when it ends, or the connection dies of it); a process's death closes, a host's is silence.
 */
#pragma once

#include "tests/simhost/simhost.h"

/* Gives the host an address, 10.0.0.number; without one it has no network. */
void vhost_set_address(struct vhost *h, unsigned number);
/* Who the sockets of the process speak for: vsock_peer_tag at the other end. At most 95 bytes. */
void vproc_set_tag(struct vproc *p, const char *tag);
const char *vsock_peer_tag(int fd); /* of a connection of the calling process; "" if not known */

enum vclass { VCLASS_CONTROL, VCLASS_DATA, VCLASSES }; /* by the mark of the packets */

/* Nothing of the class gets from one host to the other while on. */
void vnet_block(struct vhost *from, struct vhost *to, enum vclass class, bool on);
bool vnet_blocked(const struct vhost *from, const struct vhost *to, enum vclass class);
/* Connections of both classes between the two end with a reset, at both ends. */
void vnet_reset(struct vhost *a, struct vhost *b);
/* Delay of a packet: lo…hi, and with the chance `late` up to late_us. */
void vnet_set_delay(uint64_t lo_us, uint64_t hi_us, double late, uint64_t late_us);

/* What the process sends on data connections passes through here first, as whole frames (a frame
 * says its length: `parse` gives it, or 0 while it is not there). `tap` sees each before it leaves.
 */
struct vnet_tap {
	size_t (*parse)(const uint8_t *p, size_t n);
	void (*frame)(void *arg, int sock, const uint8_t *p, size_t n);
	void *arg;
};
void vproc_set_tap(struct vproc *p, const struct vnet_tap *tap);
/* Puts a frame into the stream of a connection of the process, behind what was sent. `sock` is what
 * `frame` was given; false if it is gone. */
bool vnet_inject(struct vproc *p, int sock, const uint8_t *frame, size_t n);
