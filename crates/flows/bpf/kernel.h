/* The part of the kernel's interface that flows.bpf.c uses, so that its build needs no headers of the machine. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define htons(number) ((u16)__builtin_bswap16(number))

/* Read through the context; struct __sk_buff of linux/bpf.h. */
struct __sk_buff {
	u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority, ingress_ifindex;
	u32 ifindex, tc_index, cb[5], hash, tc_classid, data, data_end, napi_id, family, remote_ip4, local_ip4;
	u32 remote_ip6[4], local_ip6[4];
	u32 remote_port, local_port, data_meta;
	u64 flow_keys;
	u64 tstamp;
	u32 wire_len, gso_segs;
	u64 sk;
	u32 gso_size;
};

/* The head of struct bpf_sock. */
struct bpf_sock {
	u32 bound_dev_if, family, type, protocol, mark, priority, src_ip4, src_ip6[4];
	u16 src_port;
	u16 dst_port;
	u16 padding;
	u32 dst_ip4, dst_ip6[4], state;
};

struct tuple4 {
	u32 source, destination;
	u16 source_port, destination_port;
};

struct tuple6 {
	u32 source[4], destination[4];
	u16 source_port, destination_port;
};

/* As loaders know it from before BTF: type, sizes, entries. */
struct map {
	u32 type, key_size, value_size, max_entries, flags, id, pinning;
};

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PER_CPU_ARRAY = 6 };

/* Helpers, all of them for programs under any licence. */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, u32 offset, const void *from, u32 len, u64 flags) = (void *)9;
static long (*bpf_redirect)(u32 ifindex, u64 flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const struct __sk_buff *skb, u32 offset, void *to, u32 len) = (void *)26;
static s64 (*bpf_csum_diff)(u32 *from, u32 from_size, u32 *to, u32 to_size, u32 seed) = (void *)28;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, u32 len, u64 flags) = (void *)38;
static long (*bpf_skb_adjust_room)(struct __sk_buff *skb, int len_diff, u32 mode, u64 flags) = (void *)50;
static long (*bpf_sk_release)(struct bpf_sock *sock) = (void *)86;
static struct bpf_sock *(*bpf_skc_lookup_tcp)(struct __sk_buff *skb, void *tuple, u32 tuple_size, u64 netns,
					      u64 flags) = (void *)99;
static long (*bpf_redirect_neigh)(u32 ifindex, void *params, int plen, u64 flags) = (void *)152;

enum { TC_ACT_UNSPEC = -1, TC_ACT_SHOT = 2 };
enum { PACKET_HOST = 0 };
enum { BPF_F_RECOMPUTE_CSUM = 1 };
enum { BPF_ADJ_ROOM_MAC = 1 };
enum {
	BPF_F_ADJ_ROOM_FIXED_GSO = 1 << 0,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 = 1 << 1,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 = 1 << 2,
	BPF_F_ADJ_ROOM_ENCAP_L4_UDP = 1 << 4,
	BPF_F_ADJ_ROOM_DECAP_L3_IPV4 = 1 << 7,
	BPF_F_ADJ_ROOM_DECAP_L3_IPV6 = 1 << 8,
};
#define BPF_F_CURRENT_NETNS (-1ULL)
enum { STATE_TIME_WAIT = 6, STATE_LISTEN = 10 };

enum { ETHERNET_BYTES = 14, TYPE_OFFSET = 12 };
enum { TYPE_IPV4 = 0x0800, TYPE_IPV6 = 0x86dd };
enum { PROTOCOL_ICMP = 1, PROTOCOL_TCP = 6, PROTOCOL_UDP = 17, PROTOCOL_FRAGMENT = 44, PROTOCOL_ICMPV6 = 58 };

struct ipv4 {
	u8 version_length, service;
	u16 total_bytes, id, fragment;
	u8 hops, protocol;
	u16 checksum;
	u32 source, destination;
};

struct ipv6 {
	u32 version_class_label;
	u16 payload_bytes;
	u8 next, hops;
	u64 source[2], destination[2];
};

struct udp {
	u16 source, destination, bytes, checksum;
};
