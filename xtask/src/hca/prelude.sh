port=/sys/class/infiniband/mlx5_0/ports/1
pci=$(basename "$(readlink -f /sys/class/infiniband/mlx5_0/device)")
driver=/sys/bus/pci/drivers/mlx5_core
# The addresses that the RDMA device has: its own netdev's, or IPoIB's.
net=10.2.0
[ "$PORT" = ib ] || net=10.1.0

# Sets the options by which the programs find the GID of 10.1.0.N.
find_gid() {
    gid= cm=
    [ "$PORT" = roce ] || return 0
    for index in 0 1 2 3 4 5 6 7 8 9; do
        grep -q ffff:0a01 $port/gids/$index && grep -q 'RoCE v2' $port/gid_attrs/types/$index 2>/dev/null &&
            gid="-g $index" cm="-x $index"
    done
    [ -n "$gid" ]
}

# Tries until the other side listens.
try() {
    local n=0
    until "$@" >/tmp/client 2>&1; do
        n=$((n + 1))
        [ $n -lt 40 ] || { echo "$* failed:"; cat /tmp/client /tmp/server 2>/dev/null; return 1; }
        sleep 0.25
    done
}

# Waits until the port is as it was when the host came up.
ready() {
    local n=0 netdev
    until grep -q ACTIVE $port/state 2>/dev/null; do
        if [ "$PORT" = roce ] && netdev=$(ls /sys/bus/pci/devices/$pci/net 2>/dev/null) && [ -n "$netdev" ]; then
            ip link set "$netdev" up
            ip -4 addr show dev "$netdev" | grep -q 10.1.0 || ip addr add 10.1.0.$HOST/24 dev "$netdev"
        fi
        n=$((n + 1))
        [ $n -lt 400 ] || { echo 'the port does not come up'; dmesg | tail -20; return 1; }
        sleep 0.05
    done
    n=0
    until find_gid; do
        n=$((n + 1))
        [ $n -lt 200 ] || { echo 'the GID does not come back'; return 1; }
        sleep 0.05
    done
}

find_gid
