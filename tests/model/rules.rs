//! The rules of the protocol, each of which can be switched off to show what it is good for. One that is not in force can
//! be switched on, to show why.

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// An answer counts only before the deadline, and the deadline is dated from before the request.
    pub deadline: bool,
    /// A claim carries the number of the attempt, so a late command cannot touch what a newer one holds.
    pub attempt_numbers: bool,
    /// A sharer has an entry of its own on each node; else they only count how many they are.
    pub own_entries: bool,
    /// A sharer's entry that has expired is gone; else it lies there, and is renewed whatever has come since.
    pub expired_is_expired: bool,
    /// Voters that answered less than the token are raised to it before it is used.
    pub raise_round: bool,
    /// A node is raised to the fence it has only by the claim that set it.
    pub setter_only: bool,
    /// A vote that is asked for again answers a new fence; else the one that stands there.
    pub votes_are_new: bool,
    /// A restarted node rests: it does not vote until every lease it may have granted is over.
    pub quarantine: bool,
    /// A marker names the time since which the server has been the master, not only the process: a server that is promoted
    /// rests, even if it finds its own marker.
    pub marker_names_reign: bool,
    /// So does the marker of all slots that a master of a cluster has.
    pub shard_marker_names_reign: bool,
    /// It names these slots.
    pub shard_marker_names_slots: bool,
    /// And the epoch since which the master has had the last one of them.
    pub shard_marker_names_epoch: bool,
    /// While it rests a node grants nothing, not even to the waiter whose claim it still carries.
    pub rest_comes_first: bool,
    /// A resting node's "extended" counts only before our last yes from that node has run out.
    pub rest_breaks_chain: bool,
    /// A quarantined server queues nobody: the next one is the gate.
    pub quarantined_queue_nobody: bool,
    /// The longest quarantine that anyone came with counts for everyone; else each goes by its own.
    pub longest_counts: bool,
    /// A yes that comes late counts until the deadline of its own round; else until that of the newest round.
    pub own_deadline: bool,
    /// The gate's answer is never smaller than its clock, which has passed every token that a node
    /// forgot by the time that node has rested.
    pub clock_floor: bool,
    /// A token is no smaller than the gate's answer, even if a majority agrees on it: only the gate goes by its
    /// clock.
    pub gate_is_counted: bool,
    /// A proposal is no further ahead of a server's clock than a server that lost its memory rests.
    pub proposals_within_quarantine: bool,
    /// Whoever has the gate's vote keeps it when another server refuses it, and asks there again.
    pub keeps_its_turn: bool,
    /// Except from an older one with another gate: then it steps back, and queues where that one does.
    pub younger_yields: bool,
    /// Not in force: a gate request that is blocked by a holder with another gate moves there.
    pub follows_the_holder: bool,
    /// If it did: not to a newcomer's, whose record tells no stamp, as it may be about to be released.
    pub strays_are_not_followed: bool,
    /// A newcomer that the gate has queued releases the votes of the other servers.
    pub strays_are_released: bool,
    /// A vote that was released is not counted.
    pub released_do_not_count: bool,
    /// Whoever finds that the gate's vote is gone steps back, as others believe that it was on its way out.
    pub lost_gate_steps_back: bool,
    /// A renewal writes the stamp into the record of a newcomer's vote, which was given before it was known.
    pub renewals_tell_the_stamp: bool,
    /// `redlock break` marks a claim, and a marked claim is not renewed.
    pub marked_is_not_renewed: bool,
    /// A marked claim is freed by its holder, or when its lease is over; else by the client that breaks it.
    pub freed_by_holder_or_lease: bool,
    /// Marks count when they are found again in a second round.
    pub marks_are_confirmed: bool,
    /// A client that has found marks on a majority does not take them back.
    pub told_is_not_taken_back: bool,
    /// A mark stays until all clients that have made it have taken it back.
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
