//! A module of src/child.

use super::channel::Channel;
use super::messages::{GuardianCommand, GuardianEvent};
use crate::fuzz::memory;

pub(crate) fn messages(data: &[u8]) {
    let (command, event) = memory::at_most(1024 + 256 * data.len(), || {
        (GuardianCommand::from_bytes(data), GuardianEvent::from_bytes(data))
    });
    // One message, one meaning: a parsed message is serialized to the same bytes.
    if let Some(command) = &command {
        assert_eq!(command.to_bytes(), data, "{command:?}");
    }
    if let Some(event) = event {
        assert_eq!(event.to_bytes(), data, "{event:?}");
    }
    // The same over the socket. An empty message means its end.
    if data.is_empty() {
        return;
    }
    let (ours, theirs) = Channel::pair().expect("a socket");
    ours.send(data).expect("sent");
    assert_eq!(theirs.receive_command().ok().flatten(), command);
    theirs.send(data).expect("sent");
    assert_eq!(ours.receive_event(), event.unwrap_or(GuardianEvent::Vanished));
}
