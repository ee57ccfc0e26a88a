//! Bytes that `h2` reads and writes, beside those of the socket: our own frames, and bytes that wait to be sealed.

use std::io::IoSlice;

use propylon_net::buffer::{Buffer, BufferPool, LARGE_BYTES};
use propylon_net::client_stream::SEAL_BYTES_MAX;
use tokio::io::ReadBuf;

use super::intake::Intake;

/// Hands the library what is for it alone; false where there is nothing.
pub fn give_ready(intake: &mut Intake, into: &mut ReadBuf<'_>) -> bool {
    let ready = intake.ready();
    let count = ready.len().min(into.remaining());
    into.put_slice(&ready[..count]);
    intake.consume_ready(count);
    count > 0
}

/// Stages our own frames behind those of the library, which must be whole. False while there is no room.
pub fn stage_frames(buffers: &BufferPool, staged: &mut Buffer, intake: &mut Intake) -> bool {
    if staged.len() + intake.say().len() > SEAL_BYTES_MAX {
        return false;
    }
    if !intake.say().is_empty() {
        stage(buffers, staged, &[IoSlice::new(intake.say())]);
        intake.said();
    }
    true
}

/// Puts what the library writes behind what is staged, as much as is sealed at one go; returns how much.
pub fn stage(buffers: &BufferPool, staged: &mut Buffer, slices: &[IoSlice<'_>]) -> usize {
    buffers.equip(staged);
    let mut taken = 0;
    for slice in slices {
        let count = slice.len().min(SEAL_BYTES_MAX - staged.len());
        if staged.len() + count > staged.capacity() && staged.capacity() < LARGE_BYTES {
            buffers.enlarge(staged);
        }
        staged.extend(&slice[..count]);
        taken += count;
    }
    taken
}
