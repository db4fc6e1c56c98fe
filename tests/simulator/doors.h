/* SPDX-License-Identifier: Apache-2.0 */
/* Of door_raft.c, which alone sees libraft. */
#pragma once

void sim_raft_heap(void);
