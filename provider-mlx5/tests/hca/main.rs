//! Runs the queues on the in-process HCA, a software ConnectX. The HCA shares no code with the
//! provider. The kernel's mlx5 driver and libmlx5 run on it as well.

mod compressed;
mod connected;
mod datagrams;
mod events;
mod frames;
mod lifetime;
mod mixed;
mod scattered;
mod shared;
mod windows;
mod work_queues;
