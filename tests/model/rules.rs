//! The rules of the protocol. Each can be switched off to show why it is needed; the one that is
//! not in force can be switched on to show why it is not.

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A reply counts only before the deadline, which is counted from before the request.
    pub deadline: bool,
    /// A claim carries the number of the attempt, so a late request cannot affect a newer claim.
    pub attempt_numbers: bool,
    /// A sharer has its own entry on each server; otherwise servers only count the sharers.
    pub own_entries: bool,
    /// A sharer's expired entry is gone; otherwise it stays, and is renewed whatever has happened
    /// since.
    pub expired_is_expired: bool,
    /// Voters that replied with a smaller token are raised to the token before it is used.
    pub raise_round: bool,
    /// A server is raised to the fence that it already has only by the claim that set it.
    pub setter_only: bool,
    /// A vote that is requested again returns a new fence; otherwise the stored one.
    pub votes_are_new: bool,
    /// A restarted server is quarantined: it does not vote until all leases that it may have
    /// granted have expired.
    pub quarantine: bool,
    /// A marker includes the time since which the server has been the master, not only the process:
    /// a promoted server is quarantined even if it finds its own marker.
    pub marker_names_reign: bool,
    /// The marker of all slots of a cluster master includes it, too.
    pub shard_marker_names_reign: bool,
    /// That marker includes these slots.
    pub shard_marker_names_slots: bool,
    /// That marker includes the epoch in which the master received the last of them.
    pub shard_marker_names_epoch: bool,
    /// A quarantined server grants nothing, not even to the waiter whose claim it still has.
    pub rest_comes_first: bool,
    /// A quarantined server's renewal counts only while our last vote of that server is valid.
    pub rest_breaks_chain: bool,
    /// A quarantined server queues no client: the next server is the gate.
    pub quarantined_queue_nobody: bool,
    /// The longest quarantine of any client applies to all; otherwise each client uses its own.
    pub longest_counts: bool,
    /// A late vote counts until the deadline of its own round; otherwise until that of the newest
    /// round.
    pub own_deadline: bool,
    /// The gate's token is never smaller than its clock. When a server's quarantine ends, the clock
    /// has passed every token that the server has lost.
    pub clock_floor: bool,
    /// A token is not smaller than the gate's, even if a majority agrees on it: only the gate
    /// derives tokens from its clock.
    pub gate_is_counted: bool,
    /// A proposal is not further ahead of a server's clock than the length of a quarantine.
    pub proposals_within_quarantine: bool,
    /// A client that has the gate's vote keeps it when another server refuses the client, and
    /// repeats its request there.
    pub keeps_its_turn: bool,
    /// Except for an older client with another gate: if the client is still refused after it has
    /// waited there (200 ms at most), it steps back and queues at that gate.
    pub younger_yields: bool,
    /// Not in force: a gate request that is blocked by a holder with another gate moves there.
    pub follows_the_holder: bool,
    /// With that rule: not to the gate of a newcomer, whose record has no stamp, as its vote may be
    /// about to be released.
    pub strays_are_not_followed: bool,
    /// A newcomer that the gate has queued releases the votes of the other servers.
    pub strays_are_released: bool,
    /// A vote that was released is not counted.
    pub released_do_not_count: bool,
    /// A client that has lost the gate's vote steps back, as others assume that it is about to.
    pub lost_gate_steps_back: bool,
    /// A renewal writes the stamp into the record of a newcomer's vote, which was given before the
    /// stamp was known.
    pub renewals_tell_the_stamp: bool,
    /// `redlock break` marks a claim, and a marked claim is not renewed.
    pub marked_is_not_renewed: bool,
    /// A marked claim is freed by its holder or when its lease expires; otherwise by the client
    /// that breaks it.
    pub freed_by_holder_or_lease: bool,
    /// Marks count only when a second round finds them again.
    pub marks_are_confirmed: bool,
    /// A client that has found marks on a majority does not remove them.
    pub told_is_not_taken_back: bool,
    /// A mark stays until all clients that have set it have removed it.
    pub marks_have_authors: bool,
}

impl Rules {
    pub const ALL: Rules = Rules {
        deadline: true,
        attempt_numbers: true,
        own_entries: true,
        expired_is_expired: true,
        raise_round: true,
        setter_only: true,
        votes_are_new: true,
        quarantine: true,
        marker_names_reign: true,
        shard_marker_names_reign: true,
        shard_marker_names_slots: true,
        shard_marker_names_epoch: true,
        rest_comes_first: true,
        rest_breaks_chain: true,
        quarantined_queue_nobody: true,
        longest_counts: true,
        own_deadline: true,
        clock_floor: true,
        gate_is_counted: true,
        proposals_within_quarantine: true,
        keeps_its_turn: true,
        younger_yields: true,
        follows_the_holder: false,
        strays_are_not_followed: true,
        strays_are_released: true,
        released_do_not_count: true,
        lost_gate_steps_back: true,
        renewals_tell_the_stamp: true,
        marked_is_not_renewed: true,
        freed_by_holder_or_lease: true,
        marks_are_confirmed: true,
        told_is_not_taken_back: true,
        marks_have_authors: true,
    };
}
