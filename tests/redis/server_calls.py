"""The rest of what is asked of both clients: streams, scripts, scans, and what a server says of itself."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from tests.redis.calls import CALLS, alike, by_sha, everything, exactly, in_order, run_twice

__all__ = ["CALLS"]

CODE = """#!lua name=mylib
redis.register_function('echo', function(keys, args) return {keys[1], args[1], 3} end)
redis.register_function{function_name='count', callback=function(keys) return 7 end, flags={'no-writes'}}
"""

ALL_TYPES = "return {1, 'two', {3, {4}}, false, true, redis.status_reply('FINE'), redis.error_reply('ERR inside')}"
RESP3_MAP = "redis.setresp(3); return redis.call('HGETALL', KEYS[1])"


async def caught(r: Any, *args: Any) -> str:
    """An error that the caller catches leaves the client as good as new."""
    try:
        await r.execute_command(*args)
    except ResponseError as error:
        return str(error)
    return "no error"


async def whole_scan(r: Any) -> Any:
    """One step takes as many buckets as the table has, and is the last: 0."""
    answer = await r.scan(match="m:*", count=1000)
    return type(answer)([answer[0], type(answer[1])(sorted(answer[1]))])


async def all_commands(r: Any) -> Any:
    found = await in_order(r.command())
    return {name: [item for item in entry.items() if item[0] != "subcommands"] for name, entry in found.items()}


async def histogram(r: Any) -> Any:
    """The figures are of time, and so are the keys under which they stand."""
    return {name: list(entry) for name, entry in (await r.execute_command("LATENCY HISTOGRAM", "config|set")).items()}


async def own_connection(r: Any) -> Any:
    """Ours alone: how many connections there are is each client's own affair."""
    return await r.client_list(client_id=[await r.client_id()])


async def custom(r: Any) -> Any:
    r.set_response_callback("echo", lambda reply, **options: (reply, options))
    try:
        return await r.execute_command("ECHO", "x", answer=42)
    finally:
        r.set_response_callback("echo", lambda reply: reply)


async def custom_async(r: Any) -> Any:
    async def answer(reply: Any, **_options: Any) -> Any:
        return [reply, await r.get("s")]

    r.set_response_callback("ECHO", answer)
    try:
        return await r.execute_command("echo", "x")
    finally:
        r.set_response_callback("ECHO", lambda reply: reply)


async def batch(r: Any, transaction: bool, *, wrong: bool = False, raise_on_error: bool = True) -> Any:
    async with r.pipeline(transaction=transaction) as pipe:
        pipe.set("pipe", "v").get("pipe").hgetall("h:one").zrange("z", 0, -1, withscores=True)
        pipe.sadd("pipe:set", "ü").smembers("pipe:set").mget([]).config_get("maxmemory").get("none")
        pipe.xrange("x", count=1).geopos("g", "Palermo").zadd("pipe:z", {"a": 1.5}).zscore("pipe:z", "a").ping()
        pipe.execute_command("client getname").eval("return {1, {2, 'x'}, false}", 0).script_exists("0" * 40)
        if not transaction:  # in one, redis-py decodes what it should not, and fails
            pipe.dump("pipe")
        if wrong:
            pipe.incr("pipe").lpush("pipe", 1).get("pipe")
        return await pipe.execute(raise_on_error=raise_on_error)


async def not_accepted(r: Any, *, raise_on_error: bool) -> Any:
    """The server takes nothing of a transaction in which it does not understand a command."""
    async with r.pipeline(transaction=True) as pipe:
        pipe.set("pipe", "never").execute_command("GET").get("pipe")
        return await pipe.execute(raise_on_error=raise_on_error)


async def empty(r: Any) -> Any:
    async with r.pipeline(transaction=True) as pipe:
        return await pipe.execute()


async def watched(r: Any, **options: Any) -> Any:
    async def body(tx: Any) -> str:
        found = await tx.get("pipe")
        await tx.zrange("z", 0, -1, withscores=True)
        tx.multi()
        tx.set("pipe", found).hgetall("h:one")
        return "done"

    return await r.transaction(body, "pipe", "none", **options)


async def interfered(r: Any) -> Any:
    tries = []

    async def body(tx: Any) -> None:
        tries.append(await tx.get("pipe:watched"))
        if len(tries) == 1:
            await r.set("pipe:watched", "changed")
        tx.multi()
        tx.get("pipe:watched")

    return [await r.transaction(body, "pipe:watched"), tries]


exactly(
    "stream",
    xadd=lambda r: r.xadd("x", {"f": "v", "n": 1}, id="1-1"),
    xadd_second=lambda r: r.xadd("x", {"f": "w"}, id="1-2"),
    xadd_third=lambda r: r.xadd("x", {"f": "ü"}, id="2-0", maxlen=100),
    xadd_old_id=lambda r: r.xadd("x", {"f": "v"}, id="1-1"),
    xadd_nomkstream=lambda r: r.xadd("none", {"f": "v"}, nomkstream=True),
    xlen=lambda r: r.xlen("x"),
    xrange=lambda r: r.xrange("x"),
    xrange_none=lambda r: r.xrange("none"),
    xrevrange=lambda r: r.xrevrange("x", count=1),
    xread=lambda r: r.xread({"x": "0"}, count=2),
    xread_none=lambda r: r.xread({"none": "0"}),
    xread_block_nothing=lambda r: r.xread({"x": "$"}, block=5),
    xread_block=lambda r: r.xread({"x": "1-1"}, block=5),
    xgroup_create=lambda r: r.xgroup_create("x", "grp", id="0"),
    xgroup_busy=lambda r: r.xgroup_create("x", "grp", id="0"),
    xgroup_no_key=lambda r: r.xgroup_create("none", "grp"),
    xgroup_createconsumer=lambda r: r.xgroup_createconsumer("x", "grp", "bob"),
    xreadgroup=lambda r: r.xreadgroup("grp", "alice", {"x": ">"}, count=2),
    xreadgroup_own=lambda r: r.xreadgroup("grp", "alice", {"x": "0"}),
    xreadgroup_block=lambda r: r.xreadgroup("grp", "bob", {"x": ">"}, block=5),
    xreadgroup_block_nothing=lambda r: r.xreadgroup("grp", "bob", {"x": ">"}, block=5),
    xreadgroup_no_group=lambda r: r.xreadgroup("nogroup", "bob", {"x": ">"}),
    xpending=lambda r: r.xpending("x", "grp"),
    xpending_range_none=lambda r: r.xpending_range("x", "grp", "5-0", "+", 10),
    xclaim=lambda r: r.xclaim("x", "grp", "bob", 0, ["1-1"]),
    xclaim_justid=lambda r: r.xclaim("x", "grp", "bob", 0, ["1-2"], justid=True),
    xautoclaim=lambda r: r.xautoclaim("x", "grp", "alice", 0, start_id="0-0", count=1),
    xautoclaim_justid=lambda r: r.xautoclaim("x", "grp", "alice", 0, start_id="0-0", justid=True),
    xack=lambda r: r.xack("x", "grp", "1-1", "9-9"),
    xdel=lambda r: r.xdel("x", "1-2"),
    xautoclaim_deleted=lambda r: r.xautoclaim("x", "grp", "alice", 0),
    xtrim=lambda r: r.xtrim("x", maxlen=10),
    xgroup_setid=lambda r: r.xgroup_setid("x", "grp", "0"),
    xgroup_delconsumer=lambda r: r.xgroup_delconsumer("x", "grp", "bob"),
    xinfo_stream=lambda r: r.xinfo_stream("x"),
    xinfo_groups=lambda r: r.xinfo_groups("x"),
    xinfo_missing=lambda r: r.xinfo_stream("none"),
)
alike(
    "stream",
    xadd_auto=lambda r: r.xadd("x:auto", {"f": "v"}),
    xpending_range=lambda r: r.xpending_range("x", "grp", "-", "+", 10),
    xinfo_consumers=lambda r: r.xinfo_consumers("x", "grp"),
    xinfo_full=lambda r: r.xinfo_stream("x", full=True),
)
exactly("stream", xgroup_destroy=lambda r: r.xgroup_destroy("x", "grp"))

exactly(
    "script",
    eval_all_types=lambda r: r.eval(ALL_TYPES, 0),
    eval_keys=lambda r: r.eval("return {KEYS[1], ARGV[1]}", 1, "s", 5),
    eval_none=lambda r: r.eval("return nil", 0),
    eval_double=lambda r: r.eval("redis.setresp(3); return {double=3.25}", 0),
    eval_map=lambda r: r.eval("redis.setresp(3); return {map={a=1}}", 0),
    eval_set=lambda r: r.eval("redis.setresp(3); return {set={x=true}}", 0),
    eval_true=lambda r: r.eval("redis.setresp(3); return true", 0),
    eval_big_number=lambda r: r.eval("redis.setresp(3); return {big_number='123456789012345678901234567890'}", 0),
    eval_map_of_hash=lambda r: r.eval(RESP3_MAP, 1, "h:one"),
    eval_status=lambda r: r.eval("return redis.status_reply('FINE')", 0),
    eval_error=lambda r: r.eval("return redis.error_reply('MYERR of mine')", 0),
    eval_broken=lambda r: r.eval("return nonsense(", 0),
    eval_fails=lambda r: r.eval("return redis.call('INCR', KEYS[1])", 1, "s"),
    eval_ro=lambda r: r.eval_ro("return redis.call('GET', KEYS[1])", 1, "s"),
    eval_ro_writes=lambda r: r.eval_ro("return redis.call('SET', KEYS[1], 1)", 1, "s"),
    script_load=lambda r: r.script_load("return 1"),
    script_exists=lambda r: r.script_exists("e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0" * 40),
    evalsha=lambda r: by_sha(r, "return {ARGV[1]}", 0, "a"),
    evalsha_ro=lambda r: r.evalsha_ro("e0e1f9fabfc9d4800c877a703b823ac0578ff8db", 0),
    evalsha_unknown=lambda r: r.evalsha("0" * 40, 0),
    register_script=run_twice,
    script_flush=lambda r: r.script_flush(),
    script_kill_nothing=lambda r: r.script_kill(),
    function_load=lambda r: r.function_load(CODE),
    function_load_again=lambda r: r.function_load(CODE),
    function_list=lambda r: r.function_list(withcode=True),
    function_list_none=lambda r: r.function_list("nothing*"),
    function_stats=lambda r: r.function_stats(),
    function_dump=lambda r: r.function_dump(),
    fcall=lambda r: r.fcall("echo", 1, "k", "arg"),
    fcall_ro=lambda r: r.fcall_ro("count", 0),
    fcall_unknown=lambda r: r.fcall("nothing", 0),
    function_delete=lambda r: r.function_delete("mylib"),
    function_flush=lambda r: r.function_flush(),
)

exactly(
    "scan",
    scan=whole_scan,
    scan_type=lambda r: r.scan(_type="zset", match="z", count=1000),
    scan_nothing=lambda r: r.scan(match="nothing*", count=1000),
    sscan_match=lambda r: r.sscan("t3", match="a"),
    hscan_missing=lambda r: r.hscan("none"),
    hscan_no_values=lambda r: r.hscan("h:one", no_values=True),
    zscan_cast=lambda r: r.zscan("z", score_cast_func=str),
    scan_iter=lambda r: in_order(everything(r.scan_iter(match="m:*"))),
    hscan_iter=lambda r: everything(r.hscan_iter("h")),
    sscan_iter=lambda r: everything(r.sscan_iter("t")),
    zscan_iter=lambda r: everything(r.zscan_iter("z")),
)

exactly(
    "sort",
    sort_prepare=lambda r: r.rpush("q", 3, 1, 2),
    sort_weights=lambda r: r.mset({"w_1": 3, "w_2": 2, "w_3": 1, "o_1": "one", "o_2": "two"}),
    sort=lambda r: r.sort("q"),
    sort_desc=lambda r: r.sort("q", desc=True, start=0, num=2),
    sort_by_get=lambda r: r.sort("q", by="w_*", get=["#", "o_*"]),
    sort_groups=lambda r: r.sort("q", by="w_*", get=["#", "o_*"], groups=True),
    sort_alpha=lambda r: r.sort("t3", alpha=True),
    sort_store=lambda r: r.sort("q", store="q2"),
    sort_ro=lambda r: r.sort_ro("q", desc=True),
    sort_not_numbers=lambda r: r.sort("t3"),
)

exactly(
    "pubsub",
    publish=lambda r: r.publish("channel", "message"),
    spublish=lambda r: r.spublish("channel", "message"),
    pubsub_channels=lambda r: r.pubsub_channels(),
    pubsub_numsub=lambda r: r.pubsub_numsub("a", "b"),
    pubsub_numsub_none=lambda r: r.pubsub_numsub(),
    pubsub_numpat=lambda r: r.pubsub_numpat(),
    pubsub_shardchannels=lambda r: r.pubsub_shardchannels(),
    pubsub_shardnumsub=lambda r: r.pubsub_shardnumsub("a"),
)

exactly(
    "server",
    ping=lambda r: r.ping(),
    ping_message=lambda r: r.execute_command("PING", "hello"),
    echo=lambda r: r.echo("hello ü"),
    dbsize=lambda r: r.dbsize(),
    role=lambda r: r.execute_command("ROLE"),
    swapdb=lambda r: r.swapdb(5, 6),
    swapdb_out_of_range=lambda r: r.execute_command("SWAPDB", 5, 5000),
    config_get=lambda r: in_order(r.config_get("maxmemory*")),
    config_get_many=lambda r: in_order(r.config_get("maxmemory", "appendonly")),
    config_get_nothing=lambda r: r.config_get("nothing"),
    config_set=lambda r: r.config_set("slowlog-max-len", 64),
    config_set_unknown=lambda r: r.config_set("nothing", 1),
    config_resetstat=lambda r: r.config_resetstat(),
    config_help=lambda r: r.execute_command("CONFIG HELP"),
    command_count=lambda r: r.command_count(),
    command_info=lambda r: r.execute_command("COMMAND INFO", "get", "hset", "none"),
    command_list=lambda r: in_order(r.command_list(category="geo")),
    command_getkeys=lambda r: r.command_getkeys("MSET", "a", 1, "b", 2),
    command_getkeys_none=lambda r: r.command_getkeys("PING"),
    command_getkeysandflags=lambda r: r.command_getkeysandflags("LMOVE", "a", "b", "LEFT", "LEFT"),
    command_docs=lambda r: in_order(r.execute_command("COMMAND DOCS", "get", "set")),
    command=all_commands,
    client_getname=lambda r: r.client_getname(),
    client_setname=lambda r: r.client_setname("me"),
    client_setname_bad=lambda r: r.client_setname("two words"),
    client_getname_set=lambda r: r.client_getname(),
    client_getredir=lambda r: r.client_getredir(),
    client_trackinginfo=lambda r: r.client_trackinginfo(),
    client_kill_nobody=lambda r: r.client_kill_filter(laddr="127.0.0.1:1"),
    client_kill_unknown=lambda r: r.client_kill("127.0.0.1:1"),
    client_unblock=lambda r: r.client_unblock(999_999),
    client_pause=lambda r: r.client_pause(1, all=False),
    client_unpause=lambda r: r.client_unpause(),
    client_list_type=lambda r: r.client_list(_type="pubsub"),
    client_list_id=lambda r: r.client_list(client_id=[999_999]),
    memory_usage=lambda r: r.memory_usage("s"),
    memory_usage_missing=lambda r: r.memory_usage("none"),
    memory_purge=lambda r: r.memory_purge(),
    memory_doctor=lambda r: r.memory_doctor(),
    memory_help=lambda r: r.memory_help(),
    object_help=lambda r: r.execute_command("OBJECT HELP"),
    latency_latest=lambda r: r.latency_latest(),
    latency_history=lambda r: r.latency_history("command"),
    latency_reset=lambda r: r.latency_reset(),
    latency_doctor=lambda r: r.latency_doctor(),
    latency_histogram=histogram,
    latency_histogram_none=lambda r: r.execute_command("LATENCY HISTOGRAM", "touch"),
    slowlog_reset=lambda r: r.slowlog_reset(),
    slowlog_none=lambda r: r.slowlog_get(),
    slowlog_all=lambda r: r.config_set("slowlog-log-slower-than", 0),
    slowlog_something=lambda r: r.execute_command("GET", "ö"),
    slowlog_no_more=lambda r: r.config_set("slowlog-log-slower-than", 10_000_000),
    slowlog_len=lambda r: r.slowlog_len(),
    acl_whoami=lambda r: r.acl_whoami(),
    acl_users=lambda r: r.acl_users(),
    acl_cat=lambda r: r.acl_cat(),
    acl_cat_one=lambda r: in_order(r.acl_cat("geo")),
    acl_cat_unknown=lambda r: r.acl_cat("nothing"),
    acl_setuser=lambda r: r.acl_setuser(
        "bob", enabled=True, passwords=["+secret"], keys=["a:*"], channels=["c:*"], commands=["+get", "-set"]
    ),
    acl_getuser=lambda r: r.acl_getuser("bob"),
    acl_getuser_missing=lambda r: r.acl_getuser("nobody"),
    acl_list=lambda r: r.acl_list(),
    acl_dryrun=lambda r: r.acl_dryrun("bob", "get", "a:1"),
    acl_dryrun_no=lambda r: r.acl_dryrun("bob", "get", "b:1"),
    acl_log_none=lambda r: r.acl_log(),
    acl_log_reset=lambda r: r.acl_log_reset(),
    acl_deluser=lambda r: r.acl_deluser("bob", "nobody"),
    acl_save=lambda r: r.acl_save(),
    acl_help=lambda r: r.acl_help(),
    module_list=lambda r: r.module_list(),
    module_load=lambda r: r.module_load("/nothing.so"),
    cluster_info=lambda r: r.cluster("INFO"),
    unknown=lambda r: r.execute_command("NONSENSE", "a", 1),
    unknown_sub=lambda r: r.execute_command("CLIENT NONSENSE"),
    too_few=lambda r: r.execute_command("GET"),
    bad_syntax=lambda r: r.execute_command("SET", "s", "v", "EX", "soon"),
    caught=lambda r: caught(r, "INCR", "s"),
    replicaof=lambda r: r.execute_command("REPLICAOF", "NO", "ONE"),
)
alike(
    "server",
    time=lambda r: r.time(),
    lastsave=lambda r: r.lastsave(),
    info=lambda r: r.info(),
    info_section=lambda r: r.info("keyspace"),
    info_two=lambda r: r.info("server", "clients"),
    client_id=lambda r: r.client_id(),
    client_info=lambda r: r.client_info(),
    client_list=own_connection,
    memory_stats=lambda r: r.memory_stats(),
    memory_malloc_stats=lambda r: r.execute_command("MEMORY MALLOC-STATS"),
    slowlog=lambda r: r.slowlog_get(1),
    acl_genpass=lambda r: r.acl_genpass(64),
    debug_object=lambda r: r.debug_object("s"),
    debug_object_list=lambda r: r.debug_object("q"),
    lolwut=lambda r: r.lolwut(),
)

exactly(
    "raw",
    lower=lambda r: r.execute_command("hgetall", "h:one"),
    mixed=lambda r: r.execute_command("zRange", "z", 0, -1, "WITHSCORES", withscores=True),
    two_words=lambda r: r.execute_command("config get", "maxmemory"),
    two_words_upper=lambda r: r.execute_command("XINFO GROUPS", "x"),
    two_arguments=lambda r: r.execute_command("CONFIG", "GET", "maxmemory"),
    three_words=lambda r: r.execute_command("config get maxmemory"),
    bytes_name=lambda r: r.execute_command(b"HGETALL", "h:one"),
    bytes_lower=lambda r: r.execute_command(b"setnx", "s", 1),
    bytes_two_words=lambda r: r.execute_command(b"client getname"),
    zrange_scores_of_set=lambda r: r.execute_command("ZRANGE", "z", 0, -1, "WITHSCORES"),
    geosearch=lambda r: r.execute_command("GEOSEARCH", "g", "FROMMEMBER", "Palermo", "BYRADIUS", 1, "km", "WITHDIST"),
    never_decode=lambda r: r.execute_command("GET", "s:ü", NEVER_DECODE=[]),
    empty_response=lambda r: r.execute_command("INCR", "s", EMPTY_RESPONSE="nothing"),
    empty_response_unused=lambda r: r.execute_command("GET", "s", EMPTY_RESPONSE="nothing"),
    custom_callback=custom,
    custom_async_callback=custom_async,
    none=lambda r: r.set("s", None),
    boolean=lambda r: r.set("s", True),
    nested=lambda r: r.sadd("t", ["a"], {"b": 1}),
    bad_option=lambda r: r.set("s", 1, ex=1, px=1),
    bad_expire=lambda r: r.zadd("z", {}),
)

exactly(
    "transaction",
    pipeline=lambda r: batch(r, False),
    transaction=lambda r: batch(r, True),
    pipeline_wrong=lambda r: batch(r, False, wrong=True),
    transaction_wrong=lambda r: batch(r, True, wrong=True),
    pipeline_errors=lambda r: batch(r, False, wrong=True, raise_on_error=False),
    transaction_errors=lambda r: batch(r, True, wrong=True, raise_on_error=False),
    not_accepted=lambda r: not_accepted(r, raise_on_error=True),
    not_accepted_listed=lambda r: not_accepted(r, raise_on_error=False),
    unchanged=lambda r: r.get("pipe"),
    empty=empty,
    watched=watched,
    watched_value=lambda r: watched(r, value_from_callable=True),
    interfered=interfered,
)

exactly("end", flushdb=lambda r: r.flushdb(), flushall=lambda r: r.flushall(), nothing=lambda r: r.dbsize())
