/* The second hop: a packet for a shared address goes to the engine that has its connection.
 *
 * Attached at tc ingress. src/layout.rs has the same layouts and names, crates/policy/src/flows/hash.rs the rule of
 * the hash. Every path ends in one counter, or two where a packet is unwrapped. Names with MAX are sizes of maps; the
 * process refuses tables that are larger.
 */
#include "kernel.h"

enum {
	BUCKETS_MAX = 131072,
	CHUNK_BUCKETS = 512,
	CHUNKS = BUCKETS_MAX / CHUNK_BUCKETS,
	ENGINES_MAX = 16384,
	VIPS_MAX = 1024,
	NO_ENGINE = 0xffff,
};

/* Two tables: one that packets go by, one that is being written. */
enum { TABLES = 2 };

/* Source ports of the tunnel: 0xc000, twelve bits of the hash for the fabric's own ECMP, the number of the hop. */
enum { PORT_BASE = 0xc000, HOP_BITS = 2, HOP_MASK = 3, HOPS_MAX = 2, HOP_LAST = 3 };

/* Listeners that were found lately: by units of 2^30 ns, which is a second and some, for as many of them. A slot has
 * one address and port; whoever is found there last has it.
 */
enum { LISTENER_SLOT_BITS = 14, LISTENERS = 1 << LISTENER_SLOT_BITS, LISTENER_CLOCK_SHIFT = 30, LISTENER_UNITS = 10 };

enum counter {
	PASSED_NOT_VIP,
	PASSED_NO_TABLE,
	PASSED_FRAGMENT,
	KEPT_OWN_SOCKET,
	KEPT_OWNER_SYN,
	KEPT_ONLY_OWNER,
	KEPT_HOP_LIMIT,
	KEPT_NO_ROUTE,
	FORWARDED_OWNER,
	FORWARDED_FORMER,
	FORWARDED_BACK,
	DECAPSULATED,
	ANSWERED_TOO_BIG,
	DROPPED_BAD_SOURCE,
	DROPPED_MALFORMED,
	DROPPED_NO_ROUTE,
	DROPPED_NO_LISTENER,
	DROPPED_TOO_BIG,
	DROPPED_FAILED,
	COUNTERS,
};

struct table {
	u64 key0, key1, buckets, self, port, is_ipv6, generation, address[2];
};

struct engine {
	u64 address[2];
	u32 interface, mtu;
};

struct address {
	u64 part[2];
};

/* Owner in the lower half of a word, former owner in the upper. */
struct chunk {
	u32 bucket[CHUNK_BUCKETS];
};

SECTION("maps") struct map active = { MAP_ARRAY, 4, 4, 1 };
SECTION("maps") struct map tables = { MAP_ARRAY, 4, sizeof(struct table), TABLES };
SECTION("maps") struct map chunks = { MAP_ARRAY, 4, sizeof(struct chunk), TABLES * CHUNKS };
SECTION("maps") struct map engines = { MAP_ARRAY, 4, sizeof(struct engine), TABLES * ENGINES_MAX };
/* Keys are addresses; the value has bit N set where table N has it. */
SECTION("maps") struct map vips = { MAP_HASH, 16, 4, TABLES * VIPS_MAX };
SECTION("maps") struct map peers = { MAP_HASH, 16, 4, TABLES * ENGINES_MAX };
/* When a listener was found last, in the lower half of a word; the upper has the part of its hash that is no slot. */
SECTION("maps") struct map listeners = { MAP_ARRAY, 4, 8, LISTENERS };
SECTION("maps") struct map counters = { MAP_PER_CPU_ARRAY, 4, 8, COUNTERS };

SECTION("license") char program_license[] = "Apache-2.0";

enum kind { OTHER, TUNNEL, FRAGMENT, MALFORMED, SYN, ACK, REST };

/* A packet, as far as the decision needs it: the connection as the client sees it, also of an ICMP error about it. */
struct packet {
	u64 source[2], destination[2];
	u16 source_port, destination_port;
	u8 is_ipv6, service;
	/* IP's and TCP's. */
	u16 header_bytes;
	enum kind kind;
};

struct outer4 {
	struct ipv4 ip;
	struct udp udp;
};

struct outer6 {
	struct ipv6 ip;
	struct udp udp;
};

struct place {
	const struct table *table;
	u32 index;
	u32 owner, former;
	u32 hash;
};

INLINE int count(u32 counter, int verdict)
{
	u64 *counted = bpf_map_lookup_elem(&counters, &counter);
	if (counted)
		*counted += 1;
	return verdict;
}

/* SipHash-1-3. */

#define ROTATE(word, by) (((word) << (by)) | ((word) >> (64 - (by))))
#define ROUND(a, b, c, d)          \
	do {                       \
		a += b;            \
		b = ROTATE(b, 13); \
		b ^= a;            \
		a = ROTATE(a, 32); \
		c += d;            \
		d = ROTATE(d, 16); \
		d ^= c;            \
		a += d;            \
		d = ROTATE(d, 21); \
		d ^= a;            \
		c += b;            \
		b = ROTATE(b, 17); \
		b ^= c;            \
		c = ROTATE(c, 32); \
	} while (0)
#define ABSORB(word)               \
	do {                       \
		d ^= (word);       \
		ROUND(a, b, c, d); \
		a ^= (word);       \
	} while (0)

INLINE u64 hash_of(const struct packet *packet, const struct table *table)
{
	u64 a = table->key0 ^ 0x736f6d6570736575ULL;
	u64 b = table->key1 ^ 0x646f72616e646f6dULL;
	u64 c = table->key0 ^ 0x6c7967656e657261ULL;
	u64 d = table->key1 ^ 0x7465646279746573ULL;
	/* Ports are in network order, so the lower half is the message's last four bytes. */
	u64 ports = (u64)packet->destination_port << 16 | packet->source_port;
	ABSORB(packet->source[0]);
	ABSORB(packet->source[1]);
	ABSORB(packet->destination[0]);
	ABSORB(packet->destination[1]);
	ABSORB(36ULL << 56 | ports);
	c ^= 0xff;
	ROUND(a, b, c, d);
	ROUND(a, b, c, d);
	ROUND(a, b, c, d);
	return a ^ b ^ c ^ d;
}

/* Reading packets. */

/* No header that is read begins further in. The verifier wants to know. */
enum { OFFSET_MASK = 0x1ff };

/* Headers are where they can be read without a call of the kernel in nearly all packets; elsewhere they are fetched.
 * Machines for which BPF is compiled by the kernel load what is not aligned as fast.
 */
INLINE long load(struct __sk_buff *skb, u32 offset, void *to, u32 bytes)
{
	const u8 *from = (const u8 *)(long)skb->data + (offset & OFFSET_MASK);
	if (from + bytes > (const u8 *)(long)skb->data_end)
		return bpf_skb_load_bytes(skb, offset, to, bytes);
	__builtin_memcpy(to, __builtin_assume_aligned(from, 8), bytes);
	return 0;
}

INLINE void map_ipv4(u64 *to, u32 address)
{
	to[0] = 0;
	to[1] = (u64)address << 32 | 0xffff0000ULL;
}

INLINE enum kind read_tcp(struct __sk_buff *skb, u32 offset, struct packet *packet)
{
	/* The first 14 bytes, up to the flags, in half words. */
	u16 head[7];
	if (load(skb, offset, head, sizeof(head)))
		return MALFORMED;
	packet->source_port = head[0];
	packet->destination_port = head[1];
	packet->header_bytes += (head[6] & 0xf0) >> 2;
	u8 flags = head[6] >> 8;
	/* SYN, RST and ACK. */
	if ((flags & 0x16) == 0x02)
		return SYN;
	return (flags & 0x16) == 0x10 ? ACK : REST;
}

/* An error quotes a packet of ours: its source is the shared address. */
INLINE enum kind read_quoted(struct __sk_buff *skb, u32 offset, struct packet *packet)
{
	u16 ports[2];
	if (packet->is_ipv6) {
		struct ipv6 ip;
		if (load(skb, offset + 8, &ip, sizeof(ip)))
			return OTHER;
		if (ip.next != PROTOCOL_TCP || ip.source[0] != packet->destination[0] ||
		    ip.source[1] != packet->destination[1])
			return OTHER;
		packet->source[0] = ip.destination[0];
		packet->source[1] = ip.destination[1];
		offset += 8 + sizeof(ip);
	} else {
		struct ipv4 ip;
		if (load(skb, offset + 8, &ip, sizeof(ip)))
			return OTHER;
		if (ip.protocol != PROTOCOL_TCP || ip.fragment & htons(0x1fff) ||
		    (u64)ip.source << 32 != (packet->destination[1] & 0xffffffff00000000ULL))
			return OTHER;
		map_ipv4(packet->source, ip.destination);
		offset += 8 + ((ip.version_length & 0x0f) << 2);
	}
	if (load(skb, offset, ports, sizeof(ports)))
		return OTHER;
	packet->source_port = ports[1];
	packet->destination_port = ports[0];
	return REST;
}

INLINE int is_vip(const struct packet *packet, u32 index)
{
	u32 *tables_of = bpf_map_lookup_elem(&vips, packet->destination);
	return tables_of && (*tables_of >> (index & 1) & 1);
}

INLINE enum kind read_icmp(struct __sk_buff *skb, u32 offset, struct packet *packet)
{
	u8 type;
	if (load(skb, offset, &type, sizeof(type)))
		return OTHER;
	/* Unreachable, time exceeded, parameter problem; in IPv6 these and too big. */
	if (packet->is_ipv6 ? type >= 1 && type <= 4 : type == 3 || type == 11 || type == 12)
		return read_quoted(skb, offset, packet);
	return OTHER;
}

/* A packet at `offset`. OTHER is for none of ours, and TUNNEL for any UDP. */
INLINE enum kind read_packet(struct __sk_buff *skb, u32 offset, u32 index, struct packet *packet)
{
	u8 protocol;
	int is_fragment = 0;
	if (packet->is_ipv6) {
		struct ipv6 ip;
		if (load(skb, offset, &ip, sizeof(ip)))
			return MALFORMED;
		packet->source[0] = ip.source[0];
		packet->source[1] = ip.source[1];
		packet->destination[0] = ip.destination[0];
		packet->destination[1] = ip.destination[1];
		packet->service = (ip.version_class_label & 0x0f) << 4 | (ip.version_class_label & 0xf000) >> 12;
		packet->header_bytes = sizeof(ip);
		protocol = ip.next;
		is_fragment = protocol == PROTOCOL_FRAGMENT;
		if ((ip.version_class_label & 0xf0) != 0x60)
			return MALFORMED;
	} else {
		struct ipv4 ip;
		if (load(skb, offset, &ip, sizeof(ip)))
			return MALFORMED;
		map_ipv4(packet->source, ip.source);
		map_ipv4(packet->destination, ip.destination);
		packet->service = ip.service;
		packet->header_bytes = (ip.version_length & 0x0f) << 2;
		protocol = ip.protocol;
		is_fragment = (ip.fragment & htons(0x3fff)) != 0;
		if (packet->header_bytes < sizeof(ip) || (ip.version_length & 0xf0) != 0x40)
			return MALFORMED;
	}
	if (protocol == PROTOCOL_UDP)
		return is_fragment ? OTHER : TUNNEL;
	if (protocol != PROTOCOL_TCP && !is_fragment &&
	    protocol != (packet->is_ipv6 ? PROTOCOL_ICMPV6 : PROTOCOL_ICMP))
		return OTHER;
	if (!is_vip(packet, index))
		return OTHER;
	if (is_fragment)
		return FRAGMENT;
	offset += packet->header_bytes;
	if (protocol == PROTOCOL_TCP)
		return read_tcp(skb, offset, packet);
	return read_icmp(skb, offset, packet);
}

/* Deciding. */

/* State of the socket that the kernel would give the packet to, 0 without one. */
INLINE u32 socket_state(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_sock *sock;
	if (packet->is_ipv6) {
		struct tuple6 tuple;
		__builtin_memcpy(tuple.source, packet->source, 16);
		__builtin_memcpy(tuple.destination, packet->destination, 16);
		tuple.source_port = packet->source_port;
		tuple.destination_port = packet->destination_port;
		sock = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple), BPF_F_CURRENT_NETNS, 0);
	} else {
		struct tuple4 tuple = {
			.source = packet->source[1] >> 32,
			.destination = packet->destination[1] >> 32,
			.source_port = packet->source_port,
			.destination_port = packet->destination_port,
		};
		sock = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sock)
		return 0;
	u32 state = sock->state;
	bpf_sk_release(sock);
	return state;
}

/* Whether the listener for a SYN has gone, and so lately that its process may have died: a reset would tell the client
 * that nobody serves here, while its next SYN may meet the bucket's next owner. A listener that is closed for good
 * costs clients no more than these seconds.
 */
INLINE int is_listener_lost(struct __sk_buff *skb, const struct packet *packet)
{
	u32 state = socket_state(skb, packet);
	u64 hash = (packet->destination[0] * 0xff51afd7ed558ccdULL ^ packet->destination[1] ^ packet->destination_port) *
		   0x9e3779b97f4a7c15ULL;
	u32 slot = hash >> (64 - LISTENER_SLOT_BITS);
	u64 *found = bpf_map_lookup_elem(&listeners, &slot);
	if (!found)
		return 0;
	u64 who = hash << LISTENER_SLOT_BITS & 0xffffffff00000000ULL;
	/* Another processor may write a later time meanwhile. 0 is never. */
	u64 now = who | (u32)((bpf_ktime_get_ns() >> LISTENER_CLOCK_SHIFT) + 1);
	u64 last = *(volatile u64 *)found;
	if (state == STATE_LISTEN) {
		/* Once in each unit: processors are not to take the line from each other for each SYN. */
		if (last != now)
			*(volatile u64 *)found = now;
		return 0;
	}
	return !state && (last ^ who) >> 32 == 0 && (u32)last && (u32)now < (u32)last + LISTENER_UNITS;
}

INLINE int find_place(const struct packet *packet, struct place *place)
{
	u64 hash = hash_of(packet, place->table);
	u32 bucket = ((hash & 0xffffffffULL) * place->table->buckets) >> 32;
	u32 number = (place->index & 1) * CHUNKS + bucket / CHUNK_BUCKETS % CHUNKS;
	struct chunk *chunk = bpf_map_lookup_elem(&chunks, &number);
	if (!chunk)
		return 0;
	u32 both = chunk->bucket[bucket % CHUNK_BUCKETS];
	place->owner = both & 0xffff;
	place->former = both >> 16;
	place->hash = hash >> 32;
	return 1;
}

/* The engine that the packet goes to, or NO_ENGINE where it stays or is dropped; *counter says why.
 *
 * HOPS_MAX ends the search. One segment goes further, back to the owner: it may end a handshake by a SYN cookie that
 * the owner has given, and only the owner's kernel can tell. Who gets it for the last time keeps it.
 *
 * Half-open sockets are connections too; a listener is none. One in TIME_WAIT, which FIN_WAIT2 of a closed socket looks
 * like, keeps what nobody else has: a client may use its port again meanwhile, for a connection at another engine.
 */
INLINE u32 decide(struct __sk_buff *skb, const struct packet *packet, const struct place *place, u32 hop, u32 *counter)
{
	u32 self = place->table->self;
	if (packet->kind == SYN) {
		if (place->owner == self || place->owner == NO_ENGINE) {
			*counter = is_listener_lost(skb, packet) ? DROPPED_NO_LISTENER : KEPT_OWNER_SYN;
			return NO_ENGINE;
		}
		*counter = KEPT_HOP_LIMIT;
		if (hop >= HOPS_MAX)
			return NO_ENGINE;
		*counter = FORWARDED_OWNER;
		return place->owner;
	}
	/* Without another engine that has or had the bucket the packet stays, whatever is found. */
	u32 former = place->former;
	if ((place->owner == self || place->owner == NO_ENGINE) && (former == self || former == NO_ENGINE)) {
		*counter = KEPT_ONLY_OWNER;
		return NO_ENGINE;
	}
	u32 state = socket_state(skb, packet);
	int is_ended = state == STATE_TIME_WAIT;
	*counter = KEPT_OWN_SOCKET;
	if (state && state != STATE_LISTEN && (!is_ended || hop >= HOPS_MAX))
		return NO_ENGINE;
	if (hop >= HOPS_MAX) {
		*counter = KEPT_HOP_LIMIT;
		if (hop >= HOP_LAST || packet->kind != ACK || place->owner == self)
			return NO_ENGINE;
		*counter = FORWARDED_BACK;
		return place->owner;
	}
	if (place->owner == self || place->owner == NO_ENGINE) {
		*counter = FORWARDED_FORMER;
		return former;
	}
	*counter = FORWARDED_OWNER;
	return place->owner;
}

/* Sending on. */

INLINE u16 sum4(const struct ipv4 *ip)
{
	const u16 *words = (const u16 *)ip;
	u32 sum = 0;
#pragma unroll
	for (int word = 0; word < 10; word++)
		sum += words[word];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Network order. */
INLINE u16 tunnel_port(u32 hash, u32 hop)
{
	return htons(PORT_BASE | (hash & 0xfff) << HOP_BITS | (hop & HOP_MASK));
}

INLINE long write_outer(struct __sk_buff *skb, const struct place *place, const struct engine *engine, u32 hop,
			u8 service)
{
	const struct table *table = place->table;
	/* Neither ECN nor a checksum outside: RFC 6040 §4.1 (compatibility mode), RFC 6935. */
	service &= 0xfc;
	u16 source_port = tunnel_port(place->hash, hop);
	if (table->is_ipv6) {
		struct outer6 outer = {};
		outer.ip.version_class_label = 0x60 | service >> 4 | (service & 0x0f) << 12;
		outer.udp.bytes = htons((u16)(skb->len - ETHERNET_BYTES - sizeof(struct ipv6)));
		outer.ip.payload_bytes = outer.udp.bytes;
		outer.ip.next = PROTOCOL_UDP;
		outer.ip.hops = 64;
		outer.ip.source[0] = table->address[0];
		outer.ip.source[1] = table->address[1];
		outer.ip.destination[0] = engine->address[0];
		outer.ip.destination[1] = engine->address[1];
		outer.udp.source = source_port;
		outer.udp.destination = table->port;
		return bpf_skb_store_bytes(skb, ETHERNET_BYTES, &outer, sizeof(outer), BPF_F_RECOMPUTE_CSUM);
	}
	struct outer4 outer = {};
	outer.ip.version_length = 0x45;
	outer.ip.service = service;
	outer.ip.total_bytes = htons((u16)(skb->len - ETHERNET_BYTES));
	/* Don't fragment. */
	outer.ip.fragment = htons(0x4000);
	outer.ip.hops = 64;
	outer.ip.protocol = PROTOCOL_UDP;
	outer.ip.source = table->address[1] >> 32;
	outer.ip.destination = engine->address[1] >> 32;
	outer.ip.checksum = sum4(&outer.ip);
	outer.udp.source = source_port;
	outer.udp.destination = table->port;
	outer.udp.bytes = htons((u16)(skb->len - ETHERNET_BYTES - sizeof(struct ipv4)));
	return bpf_skb_store_bytes(skb, ETHERNET_BYTES, &outer, sizeof(outer), BPF_F_RECOMPUTE_CSUM);
}

INLINE u32 outer_bytes(const struct table *table)
{
	return table->is_ipv6 ? sizeof(struct outer6) : sizeof(struct outer4);
}

INLINE long write_type(struct __sk_buff *skb, int is_ipv6)
{
	u16 type = is_ipv6 ? htons(TYPE_IPV6) : htons(TYPE_IPV4);
	return bpf_skb_store_bytes(skb, TYPE_OFFSET, &type, sizeof(type), 0);
}

INLINE long swap_macs(struct __sk_buff *skb)
{
	u16 macs[6], swapped[6];
	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return -1;
	__builtin_memcpy(swapped, macs + 3, 6);
	__builtin_memcpy(swapped + 3, macs, 6);
	return bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0);
}

/* How much of the packet an answer quotes: IP's header and the head of TCP's, ports and sequence number among it. */
enum { QUOTED_BYTES4 = 28, QUOTED_BYTES6 = 64 };

struct too_big4 {
	struct ipv4 ip;
	u8 type, code;
	u16 checksum, unused, mtu;
	u32 quoted[QUOTED_BYTES4 / 4];
};

struct too_big6 {
	struct ipv6 ip;
	u8 type, code;
	u16 checksum;
	u32 mtu;
	u32 quoted[QUOTED_BYTES6 / 4];
};

INLINE u16 fold(u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* From the shared address to the client: packets have to be smaller to reach the engine that has the connection. */
INLINE int answer_too_big4(struct __sk_buff *skb, const struct packet *packet, u32 mtu)
{
	struct too_big4 answer = {};
	if (packet->header_bytes < 40 || bpf_skb_load_bytes(skb, ETHERNET_BYTES, answer.quoted, QUOTED_BYTES4))
		return -1;
	/* With options in it the quotation would end within TCP's ports. */
	if ((answer.quoted[0] & 0x0f) != 5 || !(answer.quoted[1] & htons(0x4000) << 16))
		return -1;
	answer.ip.version_length = 0x45;
	answer.ip.total_bytes = htons(sizeof(answer));
	answer.ip.hops = 64;
	answer.ip.protocol = PROTOCOL_ICMP;
	answer.ip.source = packet->destination[1] >> 32;
	answer.ip.destination = packet->source[1] >> 32;
	answer.ip.checksum = sum4(&answer.ip);
	answer.type = 3;
	answer.code = 4;
	answer.mtu = htons((u16)mtu);
	answer.checksum = fold(bpf_csum_diff(0, 0, (u32 *)&answer.type, 8 + QUOTED_BYTES4, 0));
	if (bpf_skb_change_tail(skb, ETHERNET_BYTES + sizeof(answer), 0))
		return -1;
	return bpf_skb_store_bytes(skb, ETHERNET_BYTES, &answer, sizeof(answer), 0);
}

INLINE int answer_too_big6(struct __sk_buff *skb, const struct packet *packet, u32 mtu)
{
	struct too_big6 answer = {};
	if (packet->header_bytes < 60 || bpf_skb_load_bytes(skb, ETHERNET_BYTES, answer.quoted, QUOTED_BYTES6))
		return -1;
	answer.ip.version_class_label = 0x60;
	answer.ip.payload_bytes = htons(8 + QUOTED_BYTES6);
	answer.ip.next = PROTOCOL_ICMPV6;
	answer.ip.hops = 64;
	answer.ip.source[0] = packet->destination[0];
	answer.ip.source[1] = packet->destination[1];
	answer.ip.destination[0] = packet->source[0];
	answer.ip.destination[1] = packet->source[1];
	answer.type = 2;
	answer.mtu = __builtin_bswap32(mtu);
	/* The pseudo header of RFC 8200 §8.1, then the message. */
	u32 pseudo[2] = { __builtin_bswap32(8 + QUOTED_BYTES6), __builtin_bswap32(PROTOCOL_ICMPV6) };
	s64 sum = bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), 0);
	sum = bpf_csum_diff(0, 0, (u32 *)answer.ip.source, 32, sum);
	sum = bpf_csum_diff(0, 0, (u32 *)&answer.type, 8 + QUOTED_BYTES6, sum);
	answer.checksum = fold(sum);
	if (bpf_skb_change_tail(skb, ETHERNET_BYTES + sizeof(answer), 0))
		return -1;
	return bpf_skb_store_bytes(skb, ETHERNET_BYTES, &answer, sizeof(answer), 0);
}

INLINE int answer_too_big(struct __sk_buff *skb, const struct packet *packet, u32 mtu)
{
	/* An error about an error is not sent (RFC 1122 §3.2.2). */
	if (packet->kind != ACK && packet->kind != SYN)
		return count(DROPPED_TOO_BIG, TC_ACT_SHOT);
	if (packet->is_ipv6 ? answer_too_big6(skb, packet, mtu) : answer_too_big4(skb, packet, mtu))
		return count(DROPPED_TOO_BIG, TC_ACT_SHOT);
	if (swap_macs(skb))
		return count(DROPPED_FAILED, TC_ACT_SHOT);
	return count(ANSWERED_TOO_BIG, bpf_redirect(skb->ifindex, 0));
}

INLINE int send_on(struct __sk_buff *skb, const struct packet *packet, const struct place *place, u32 target, u32 hop,
		   u32 counter)
{
	u32 slot = (place->index & 1) * ENGINES_MAX + target % ENGINES_MAX;
	const struct table *table = place->table;
	struct engine *engine = bpf_map_lookup_elem(&engines, &slot);
	if (!engine || !engine->interface) {
		/* A new connection is served rather than lost; of others the next packet may find a route. */
		if (packet->kind == SYN && !hop)
			return count(KEPT_NO_ROUTE, TC_ACT_UNSPEC);
		return count(DROPPED_NO_ROUTE, TC_ACT_SHOT);
	}
	u32 interface = engine->interface;
	if (!hop) {
		u32 room = outer_bytes(table), mtu = engine->mtu, gso = skb->gso_size;
		if (!gso && skb->len - ETHERNET_BYTES + room > mtu)
			return answer_too_big(skb, packet, mtu - room);
		u64 flags = BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
		flags |= table->is_ipv6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
		/* Segments that would be too long outside are cut smaller: it is TCP. */
		if (gso + packet->header_bytes + room <= mtu)
			flags |= BPF_F_ADJ_ROOM_FIXED_GSO;
		if (bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, flags) || write_type(skb, table->is_ipv6))
			return count(DROPPED_FAILED, TC_ACT_SHOT);
	}
	if (write_outer(skb, place, engine, hop + 1, packet->service))
		return count(DROPPED_FAILED, TC_ACT_SHOT);
	return count(counter, bpf_redirect_neigh(interface, 0, 0, 0));
}

INLINE int unwrap(struct __sk_buff *skb, const struct packet *packet, const struct table *table)
{
	u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	/* Kernels before 6.3 know the flags not; they are asked only where the family changes. */
	if (table->is_ipv6 && !packet->is_ipv6)
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV4;
	if (!table->is_ipv6 && packet->is_ipv6)
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -(int)outer_bytes(table), BPF_ADJ_ROOM_MAC, flags) ||
	    write_type(skb, packet->is_ipv6))
		return count(DROPPED_FAILED, TC_ACT_SHOT);
	return count(DECAPSULATED, TC_ACT_UNSPEC);
}

/* The hop of a tunnel packet that is for this engine, 0 for other UDP; -1 after a drop. */
INLINE int tunnel_hop(struct __sk_buff *skb, struct packet *packet, const struct table *table)
{
	struct udp udp;
	if (bpf_skb_load_bytes(skb, ETHERNET_BYTES + packet->header_bytes, &udp, sizeof(udp)))
		return 0;
	if (udp.destination != table->port || packet->destination[0] != table->address[0] ||
	    packet->destination[1] != table->address[1])
		return 0;
	if (!bpf_map_lookup_elem(&peers, packet->source)) {
		count(DROPPED_BAD_SOURCE, 0);
		return -1;
	}
	u32 hop = htons(udp.source) & HOP_MASK;
	u8 version;
	if (!hop || packet->header_bytes != outer_bytes(table) - sizeof(udp) ||
	    bpf_skb_load_bytes(skb, ETHERNET_BYTES + outer_bytes(table), &version, sizeof(version))) {
		count(DROPPED_MALFORMED, 0);
		return -1;
	}
	packet->is_ipv6 = version >> 4 == 6;
	return hop;
}

SECTION("classifier") int second_hop(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct place place = {};
	u32 zero = 0;
	if (skb->protocol == htons(TYPE_IPV6))
		packet.is_ipv6 = 1;
	else if (skb->protocol != htons(TYPE_IPV4))
		return count(PASSED_NOT_VIP, TC_ACT_UNSPEC);
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return count(PASSED_NOT_VIP, TC_ACT_UNSPEC);
	u32 *index = bpf_map_lookup_elem(&active, &zero);
	if (!index)
		return count(PASSED_NO_TABLE, TC_ACT_UNSPEC);
	place.index = *index & 1;

	packet.kind = read_packet(skb, ETHERNET_BYTES, place.index, &packet);
	if (packet.kind == OTHER || packet.kind == MALFORMED)
		return count(PASSED_NOT_VIP, TC_ACT_UNSPEC);
	if (packet.kind == FRAGMENT)
		return count(PASSED_FRAGMENT, TC_ACT_UNSPEC);
	place.table = bpf_map_lookup_elem(&tables, &place.index);
	if (!place.table || !place.table->buckets)
		return count(PASSED_NO_TABLE, TC_ACT_UNSPEC);

	int hop = 0;
	if (packet.kind == TUNNEL) {
		hop = tunnel_hop(skb, &packet, place.table);
		if (!hop)
			return count(PASSED_NOT_VIP, TC_ACT_UNSPEC);
		if (hop < 0)
			return TC_ACT_SHOT;
		packet.kind = read_packet(skb, ETHERNET_BYTES + outer_bytes(place.table), place.index, &packet);
		if (packet.kind < SYN)
			return count(DROPPED_MALFORMED, TC_ACT_SHOT);
	}
	if (!find_place(&packet, &place))
		return count(PASSED_NO_TABLE, TC_ACT_UNSPEC);
	u32 counter = KEPT_ONLY_OWNER;
	u32 target = decide(skb, &packet, &place, hop, &counter);
	if (target != NO_ENGINE)
		return send_on(skb, &packet, &place, target, hop, counter);
	if (counter == DROPPED_NO_LISTENER)
		return count(counter, TC_ACT_SHOT);
	if (hop)
		count(counter, 0);
	return hop ? unwrap(skb, &packet, place.table) : count(counter, TC_ACT_UNSPEC);
}
