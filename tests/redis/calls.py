"""What is asked of both clients, in this order: each call finds what the earlier ones have left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, final

from redis.commands.core import AsyncScript

Ask = Callable[[Any], Awaitable[Any]]


@final
@dataclass(frozen=True)
class Case:
    """One call of a client's method."""

    group: str
    label: str
    call: Ask
    exact: bool = True
    """Whether the answers must be equal; else they must only look alike."""

    def __str__(self) -> str:
        return f"{self.group}: {self.label}"


CALLS: list[Case] = []


def exactly(group: str, **calls: Ask) -> None:
    CALLS.extend(Case(group, label, call) for label, call in calls.items())


def alike(group: str, **calls: Ask) -> None:
    """Of time, of chance, or of the server's state: only the types and the keys must be the same."""
    CALLS.extend(Case(group, label, call, exact=False) for label, call in calls.items())


async def everything(iterator: Any) -> list[Any]:
    return [item async for item in iterator]


async def in_order(answer: Awaitable[Any]) -> Any:
    """The server looks these up in a hash table, which it may be rebuilding meanwhile."""
    found = await answer
    return dict(sorted(found.items())) if isinstance(found, dict) else type(found)(sorted(found))


async def load_again(r: Any, key: str) -> Any:
    return await r.restore(key + ":copy", 0, await r.dump(key), replace=True)


async def run_twice(r: Any) -> list[Any]:
    """A script object, of which the server knows nothing the first time."""
    script: AsyncScript = r.register_script("return {KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}")
    return [await script(keys=["script:count"], args=["a"]), await script(keys=["script:count"], args=[2])]


async def by_sha(r: Any, text: str, *args: Any) -> Any:
    return await r.evalsha(await r.script_load(text), *args)


exactly(
    "string",
    set=lambda r: r.set("s", "hello"),
    set_px=lambda r: r.set("s:px", b"\x00\x01", px=100_000),
    set_nx_refused=lambda r: r.set("s", "other", nx=True),
    set_get=lambda r: r.set("s", "world", get=True),
    set_get_missing=lambda r: r.set("s:new", 1, get=True),
    set_bytearray=lambda r: r.set(bytearray(b"s:bytearray"), memoryview(b"view")),
    set_float=lambda r: r.set("s:float", 0.1),
    set_empty=lambda r: r.set("s:empty", ""),
    set_unicode=lambda r: r.set("s:ü", "ö€😀"),
    get=lambda r: r.get("s"),
    get_missing=lambda r: r.get("s:none"),
    get_empty=lambda r: r.get("s:empty"),
    get_unicode=lambda r: r.get("s:ü"),
    get_of_list=lambda r: r.execute_command("EVAL", "redis.call('RPUSH', 'l0', 1) return redis.pcall('GET', 'l0')", 0),
    getdel=lambda r: r.getdel("s:new"),
    getex=lambda r: r.getex("s", persist=True),
    getset=lambda r: r.getset("s", "hello world"),
    getrange=lambda r: r.getrange("s", 0, 4),
    setrange=lambda r: r.setrange("s", 6, "Redis"),
    append=lambda r: r.append("s", "!"),
    strlen=lambda r: r.strlen("s"),
    mset=lambda r: r.mset({"m:1": 1, "m:2": "two"}),
    msetnx=lambda r: r.msetnx({"m:1": 1, "m:3": "three"}),
    mget=lambda r: r.mget("m:1", "m:none", "m:2"),
    mget_none=lambda r: r.mget([]),
    incr=lambda r: r.incr("n"),
    incrby=lambda r: r.incrby("n", 2**40),
    decr=lambda r: r.decr("n", 3),
    incr_not_a_number=lambda r: r.incr("s"),
    incrbyfloat=lambda r: r.incrbyfloat("f", 1.5),
    setex=lambda r: r.setex("s:ex", 100, "v"),
    psetex=lambda r: r.psetex("s:pex", 100_000, "v"),
    setnx=lambda r: r.setnx("s:nx", "v"),
    lcs=lambda r: r.lcs("s", "s:nx"),
    lcs_len=lambda r: r.lcs("s", "s", len=True),
    lcs_idx=lambda r: r.lcs("s", "s", idx=True, minmatchlen=2, withmatchlen=True),
    wrong_type=lambda r: r.incr("l0"),
)

exactly(
    "key",
    exists=lambda r: r.exists("s", "n", "none"),
    type=lambda r: r.type("s"),
    type_missing=lambda r: r.type("none"),
    expire=lambda r: r.expire("s", 1000),
    expire_missing=lambda r: r.expire("none", 1000),
    expire_gt=lambda r: r.expire("s", 10, gt=True),
    expireat=lambda r: r.expireat("n", 4_000_000_000),
    expiretime=lambda r: r.expiretime("n"),
    pexpireat=lambda r: r.pexpireat("n", 4_000_000_000_000),
    pexpiretime=lambda r: r.pexpiretime("n"),
    ttl_none=lambda r: r.ttl("f"),
    ttl_missing=lambda r: r.ttl("none"),
    persist=lambda r: r.persist("s"),
    rename=lambda r: r.rename("m:1", "m:one"),
    rename_missing=lambda r: r.rename("none", "other"),
    renamenx=lambda r: r.renamenx("m:one", "m:2"),
    copy=lambda r: r.copy("s", "s:copied"),
    move=lambda r: r.move("s:copied", 1),
    delete=lambda r: r.delete("s:empty", "none"),
    unlink=lambda r: r.unlink("s:float"),
    touch=lambda r: r.touch("s", "none"),
    dump=lambda r: r.dump("s:nx"),
    dump_missing=lambda r: r.dump("none"),
    restore=lambda r: load_again(r, "s:nx"),
    restore_busy=lambda r: r.restore("s", 0, b"x"),
    restore_bad=lambda r: r.restore("s:bad", 0, b"nonsense"),
    keys=lambda r: in_order(r.keys("m:*")),
    object_encoding=lambda r: r.object("ENCODING", "s"),
    object_encoding_int=lambda r: r.object("encoding", "n"),
    object_refcount=lambda r: r.object("refcount", "f"),
    object_freq=lambda r: r.object("freq", "s"),
    object_missing=lambda r: r.object("encoding", "none"),
)
alike(
    "key",
    ttl=lambda r: r.ttl("n"),
    pttl=lambda r: r.pttl("n"),
    randomkey=lambda r: r.randomkey(),
    object_idletime=lambda r: r.object("idletime", "s"),
)

exactly(
    "bitmap",
    setbit=lambda r: r.setbit("b", 7, 1),
    getbit=lambda r: r.getbit("b", 7),
    bitcount=lambda r: r.bitcount("b"),
    bitcount_bit=lambda r: r.bitcount("b", 5, 30, "BIT"),
    bitpos=lambda r: r.bitpos("b", 1),
    bitop=lambda r: r.bitop("NOT", "b:not", "b"),
    bitfield=lambda r: r.bitfield("b").set("u8", 0, 200).incrby("u8", 8, 1).get("i4", 0).execute(),
    bitfield_overflow=lambda r: r.bitfield("b", "FAIL").incrby("u2", 100, 3).incrby("u2", 100, 3).execute(),
    bitfield_ro=lambda r: r.bitfield_ro("b", "u8", 0),
    not_utf8=lambda r: r.get("b:not"),
    setbit_bad=lambda r: r.setbit("b", -1, 1),
)

exactly(
    "hash",
    hset=lambda r: r.hset("h", mapping={"a": 1, "b": "two", "c": 3.5}),
    hset_one=lambda r: r.hset("h", "d", b"\xc3\xa4"),
    hget=lambda r: r.hget("h", "b"),
    hget_missing=lambda r: r.hget("h", "none"),
    hgetall=lambda r: r.hgetall("h"),
    hgetall_missing=lambda r: r.hgetall("none"),
    hmget=lambda r: r.hmget("h", ["a", "none", "d"]),
    hkeys=lambda r: r.hkeys("h"),
    hvals=lambda r: r.hvals("h"),
    hlen=lambda r: r.hlen("h"),
    hexists=lambda r: r.hexists("h", "a"),
    hexists_not=lambda r: r.hexists("h", "none"),
    hdel=lambda r: r.hdel("h", "d", "none"),
    hincrby=lambda r: r.hincrby("h", "a", 5),
    hincrbyfloat=lambda r: r.hincrbyfloat("h", "c", 0.25),
    hsetnx=lambda r: r.hsetnx("h", "a", 9),
    hstrlen=lambda r: r.hstrlen("h", "b"),
    hscan=lambda r: r.hscan("h"),
    hrandfield_withvalues=lambda r: r.hrandfield("h:one", 1, withvalues=True),
    hrandfield_missing=lambda r: r.hrandfield("none"),
    hset_one_field=lambda r: r.hset("h:one", "only", "value"),
    hrandfield_only=lambda r: r.hrandfield("h:one", 3, withvalues=True),
    hexpire=lambda r: r.hexpire("h", 1000, "a", "none"),
    hpexpire=lambda r: r.hpexpire("h", 1_000_000, "b", nx=True),
    hexpireat=lambda r: r.hexpireat("h", 4_000_000_000, "a"),
    hexpiretime=lambda r: r.hexpiretime("h", "a", "c", "none"),
    hpexpiretime=lambda r: r.hpexpiretime("h", "a"),
    httl_missing=lambda r: r.httl("none", "a"),
    hpersist=lambda r: r.hpersist("h", "a", "c"),
    hsetex=lambda r: r.hsetex("h", mapping={"e": "x", "f": "y"}, ex=1000),
    hgetex=lambda r: r.hgetex("h", "e", "none", persist=True),
    hgetdel=lambda r: r.hgetdel("h", "e", "f"),
    hget_wrong_type=lambda r: r.hget("s", "a"),
)
alike(
    "hash",
    httl=lambda r: r.httl("h", "b", "none"),
    hrandfield=lambda r: r.hrandfield("h", 2),
)

exactly(
    "list",
    rpush=lambda r: r.rpush("l", "a", "b", "c", 4, 5.5),
    lpush=lambda r: r.lpush("l", "z"),
    lpushx=lambda r: r.lpushx("none", "z"),
    lrange=lambda r: r.lrange("l", 0, -1),
    lrange_missing=lambda r: r.lrange("none", 0, -1),
    lindex=lambda r: r.lindex("l", 1),
    lindex_missing=lambda r: r.lindex("l", 100),
    linsert=lambda r: r.linsert("l", "BEFORE", "b", "x"),
    llen=lambda r: r.llen("l"),
    lpos=lambda r: r.lpos("l", "b"),
    lpos_count=lambda r: r.lpos("l", "a", count=0),
    lpos_missing=lambda r: r.lpos("l", "nowhere"),
    lset=lambda r: r.lset("l", 0, "first"),
    lset_out_of_range=lambda r: r.lset("l", 100, "x"),
    lrem=lambda r: r.lrem("l", 1, "x"),
    ltrim=lambda r: r.ltrim("l", 0, 4),
    lmove=lambda r: r.lmove("l", "l2", "RIGHT", "LEFT"),
    rpoplpush=lambda r: r.rpoplpush("l", "l2"),
    lpop=lambda r: r.lpop("l"),
    lpop_count=lambda r: r.lpop("l2", 5),
    lpop_missing=lambda r: r.lpop("none"),
    rpop_count_missing=lambda r: r.rpop("none", 2),
    lmpop=lambda r: r.lmpop(2, "none", "l", direction="LEFT", count=1),
    lmpop_missing=lambda r: r.lmpop(1, "none", direction="LEFT"),
    blpop=lambda r: r.blpop(["none", "l"], timeout=1),
    blpop_nothing=lambda r: r.blpop("none", timeout=0.01),
    brpop_nothing=lambda r: r.brpop("none", timeout=0.01),
    blmove_nothing=lambda r: r.blmove("none", "other", 0.01),
    brpoplpush_nothing=lambda r: r.execute_command("BRPOPLPUSH", "none", "other", 0.01),
    blmpop=lambda r: r.blmpop(1, 2, "none", "l0", direction="RIGHT"),
    blmpop_nothing=lambda r: r.blmpop(0.01, 1, "none", direction="RIGHT"),
)

exactly(
    "set",
    sadd=lambda r: r.sadd("t", "a", "b", "c", 1),
    sadd_other=lambda r: r.sadd("t2", "b", "c", "d"),
    smembers=lambda r: r.smembers("t"),
    smembers_missing=lambda r: r.smembers("none"),
    sismember=lambda r: r.sismember("t", "a"),
    smismember=lambda r: r.smismember("t", ["a", "none"]),
    scard=lambda r: r.scard("t"),
    sdiff=lambda r: r.sdiff("t", "t2"),
    sinter=lambda r: r.sinter("t", "t2"),
    sintercard=lambda r: r.sintercard(2, ["t", "t2"]),
    sunion=lambda r: r.sunion("t", "t2"),
    sunionstore=lambda r: r.sunionstore("t3", "t", "t2"),
    smove=lambda r: r.smove("t", "t2", "a"),
    srem=lambda r: r.srem("t", "b", "none"),
    spop_missing=lambda r: r.spop("none"),
    sscan=lambda r: r.sscan("t"),
    set_one=lambda r: r.sadd("t:one", "only"),
    srandmember_one=lambda r: r.srandmember("t:one"),
    spop_count=lambda r: r.spop("t:one", 2),
)
alike("set", srandmember=lambda r: r.srandmember("t3", 2))

exactly(
    "sorted set",
    zadd=lambda r: r.zadd("z", {"a": 1, "b": 2.5, "c": float("inf"), "d": -3}),
    zadd_ch=lambda r: r.zadd("z", {"a": 1.5, "e": 1e300}, ch=True),
    zadd_incr=lambda r: r.zadd("z", {"a": 1}, incr=True),
    zadd_nx_incr=lambda r: r.zadd("z", {"a": 1}, nx=True, incr=True),
    zadd_nan=lambda r: r.zadd("z", {"a": float("nan")}),
    zrange=lambda r: r.zrange("z", 0, -1),
    zrange_scores=lambda r: r.zrange("z", 0, -1, withscores=True),
    zrange_scores_int=lambda r: r.zrange("z", 0, 1, withscores=True, score_cast_func=int),
    zrange_rev=lambda r: r.zrange("z", 0, 1, desc=True, withscores=True),
    zrange_by_score=lambda r: r.zrange("z", "-inf", "+inf", byscore=True, offset=1, num=2),
    zrange_missing=lambda r: r.zrange("none", 0, -1, withscores=True),
    zrangebyscore=lambda r: r.zrangebyscore("z", "-inf", 3, withscores=True),
    zrevrangebyscore=lambda r: r.zrevrangebyscore("z", 3, "-inf", withscores=True),
    zrevrange=lambda r: r.zrevrange("z", 0, 1, withscores=True),
    zrangestore=lambda r: r.zrangestore("z2", "z", 0, 2),
    zadd_lex=lambda r: r.zadd("lex", dict.fromkeys("abcd", 0)),
    zrangebylex=lambda r: r.zrangebylex("lex", "[b", "+"),
    zlexcount=lambda r: r.zlexcount("lex", "-", "+"),
    zscore=lambda r: r.zscore("z", "b"),
    zscore_missing=lambda r: r.zscore("z", "none"),
    zscore_inf=lambda r: r.zscore("z", "c"),
    zmscore=lambda r: r.zmscore("z", ["a", "none", "b"]),
    zincrby=lambda r: r.zincrby("z", 0.25, "b"),
    zrank=lambda r: r.zrank("z", "b"),
    zrank_score=lambda r: r.zrank("z", "b", withscore=True),
    zrevrank_score=lambda r: r.zrevrank("z", "b", withscore=True),
    zrank_missing=lambda r: r.zrank("z", "none", withscore=True),
    zcard=lambda r: r.zcard("z"),
    zcount=lambda r: r.zcount("z", 0, 3),
    zunion=lambda r: r.zunion(["z", "z2"], withscores=True),
    zunion_plain=lambda r: r.zunion({"z": 1, "z2": 2}, aggregate="MAX"),
    zinter=lambda r: r.zinter(["z", "z2"], withscores=True),
    zintercard=lambda r: r.zintercard(2, ["z", "z2"]),
    zdiff=lambda r: r.zdiff(["z", "z2"], withscores=True),
    zdiff_plain=lambda r: r.zdiff(["z", "z2"]),
    zunionstore=lambda r: r.zunionstore("z3", ["z", "z2"]),
    zscan=lambda r: r.zscan("z"),
    zpopmin=lambda r: r.zpopmin("z3"),
    zpopmax_count=lambda r: r.zpopmax("z3", 2),
    zpopmin_missing=lambda r: r.zpopmin("none"),
    bzpopmin=lambda r: r.bzpopmin(["none", "z3"], timeout=1),
    bzpopmax_nothing=lambda r: r.bzpopmax("none", timeout=0.01),
    zmpop=lambda r: r.zmpop(2, ["none", "z2"], min=True, count=2),
    zmpop_missing=lambda r: r.zmpop(1, ["none"], max=True),
    bzmpop=lambda r: r.bzmpop(1, 1, ["z2"], max=True),
    bzmpop_nothing=lambda r: r.bzmpop(0.01, 1, ["none"], max=True),
    zrandmember_missing=lambda r: r.zrandmember("none"),
    zremrangebyscore=lambda r: r.zremrangebyscore("lex", 0, 0),
    zrem=lambda r: r.zrem("z", "a", "none"),
)
alike("sorted set", zrandmember=lambda r: r.zrandmember("z", 2, withscores=True))

exactly(
    "hyperloglog",
    pfadd=lambda r: r.pfadd("p", "a", "b", "c"),
    pfadd_again=lambda r: r.pfadd("p", "a"),
    pfcount=lambda r: r.pfcount("p", "none"),
    pfmerge=lambda r: r.pfmerge("p2", "p"),
    pfcount_wrong=lambda r: r.pfcount("s"),
)

exactly(
    "geo",
    geoadd=lambda r: r.geoadd("g", (13.361389, 38.115556, "Palermo", 15.087269, 37.502669, "Catania")),
    geoadd_bad=lambda r: r.geoadd("g", (200, 0, "nowhere")),
    geopos=lambda r: r.geopos("g", "Palermo", "none"),
    geodist=lambda r: r.geodist("g", "Palermo", "Catania", "km"),
    geodist_missing=lambda r: r.geodist("g", "Palermo", "none"),
    geohash=lambda r: r.geohash("g", "Palermo", "none"),
    geosearch=lambda r: r.geosearch("g", longitude=15, latitude=37, radius=200, unit="km", sort="ASC"),
    geosearch_all=lambda r: r.geosearch(
        "g",
        member="Palermo",
        width=600,
        height=400,
        unit="km",
        withcoord=True,
        withdist=True,
        withhash=True,
        sort="ASC",
    ),
    geosearch_dist=lambda r: r.geosearch("g", longitude=15, latitude=37, radius=200, unit="km", withdist=True),
    geosearchstore=lambda r: r.geosearchstore("g2", "g", longitude=15, latitude=37, radius=200, unit="km"),
    georadius=lambda r: r.georadius("g", 15, 37, 200, unit="km", withdist=True, withcoord=True, sort="DESC"),
    georadiusbymember=lambda r: r.georadiusbymember("g", "Palermo", 10, unit="km"),
)
