//! Locks on servers: leases, fences, the network, errors, permissions.

mod changed_password;
mod fence;
mod impostors;
mod lease;
mod managed;
mod many;
mod min_hold;
mod network;
mod on_unavailable;
mod overlap;
mod permissions;
mod places;
mod queue;
mod server_errors;
mod several_keys;
mod shared;
mod shared_lease;
mod silent;
mod suspend;
mod ttl_none;
mod wait_for_servers;
mod waiting;
