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

# Runs are numbered by the TCP port of their server. Client and server count alike.
first=18601
at=$first waiting=() named=()

# Starts a command that waits for the other side.
await() {
    "$@" >/tmp/server.$at 2>&1 &
    waiting[at]=$! named[at]="$*"
    at=$((at + 1))
}

# Starts the program that serves the next run.
serve() {
    await "$@" -p $at
}

# Waits until programs listen on these ports, or on those of all servers.
listening() {
    local port sign end=$((SECONDS + 60))
    for port in ${*:-${!waiting[@]}}; do
        printf -v sign ':%04X +(0):0000 0A' $port
        until [[ $(</proc/net/tcp)$(</proc/net/tcp6) == *$sign* ]]; do
            [ $SECONDS -lt $end ] && kill -0 ${waiting[port]:-$$} 2>/dev/null ||
                { echo "no program listens on port $port: ${named[port]}"; cat /tmp/server.$port; return 1; }
            sleep 0.02
        done
    done
}

# Waits until all started programs have ended, and prints those that failed.
served() {
    local run failed=0
    for run in ${!waiting[@]}; do
        wait ${waiting[run]} || { echo "${named[run]} failed:"; cat /tmp/server.$run; failed=1; }
    done
    return $failed
}

# Runs the client of the next run.
play() {
    "$@" -p $at 10.1.0.$PEER >/tmp/client 2>&1 ||
        { echo "$* failed:"; cat /tmp/client /tmp/server.$at 2>/dev/null; return 1; }
    at=$((at + 1))
}

# Tries until the other side is ready.
try() {
    local n=0
    until "$@" >/tmp/client 2>&1; do
        n=$((n + 1))
        [ $n -lt 100 ] || { echo "$* failed:"; cat /tmp/client; return 1; }
        sleep 0.1
    done
}

# Waits until the port has the state that it had after boot.
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

shopt -s extglob
find_gid
