//! System calls as safe functions: each does one thing, decides nothing and knows no runtime.
//!
//! Linux only. Errors come as the kernel gave them; the caller adds which listener or server they were about.

mod activation;
mod address;
mod calls;
mod control_groups;
mod cores;
mod folders;
mod handover;
mod line_queue;
mod memory;
mod pipe;
mod privileges;
mod process;
mod socket;
mod temporary_file;
mod whole_file;
#[allow(unsafe_code, reason = "an allocator is unsafe by its nature")]
mod wiping;

pub use activation::{Activated, take_activated};
pub use address::{Address, ConnectSource, UnixName};
pub use calls::{Argument, CallFilter, CallFilterError, Confined};
pub use cores::{allowed_cores, pin_to_core, quota, usable_cores};
pub use folders::{folder_of, folders_of, is_beneath, is_broad, is_out_of_reach, is_same_file, set_reachable_folders};
pub use handover::{
    FILES_PER_MESSAGE_MAX, MESSAGE_BYTES_MAX, ProcessWatch, accept_messages, connect_messages, is_peer_trusted,
    listen_messages, message_listener, message_pair, peer_process, receive_message, send_message, set_nonblocking,
    shares_port, tcp_listener, try_receive_message, try_send_message, unix_listener,
};
pub use line_queue::{LINES_WAITING_BYTES_MAX, LineQueue};
pub use memory::{MemoryGroup, machine_memory_bytes, release_memory};
pub use pipe::Pipe;
pub use privileges::{Account, PrivilegesError, drop_privileges};
pub use process::{
    block_signals, close_files_on_exec, files_limit, is_clock_synchronised, lock_memory, lower_priority, name_process,
    no_core_dumps, no_huge_pages, no_new_privileges, process_cpu, raise_files_limit, resident_bytes, thread_cpu,
    try_trace,
};
pub use socket::{
    ListenOptions, accept, bind_advice, check_free, check_source, connect, connect_from, connect_result,
    connect_to_write_once, listen, listen_unix, local_address, peek, peek_closed, peek_ended, peek_readable,
    peek_reset, receive, reset_on_close, send_more, send_now, set_defer_accept, set_nodelay, unacknowledged,
};
pub use temporary_file::temporary_file;
pub use whole_file::read_whole_file;
pub use wiping::{Wiping, wipe_freed_memory};
