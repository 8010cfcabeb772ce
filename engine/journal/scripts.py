"""What Redis does in one step, in Lua: each script is atomic there.

A stream is a list, so that it expires, is evicted and is deleted as a whole: the version, who may write to it, the
pieces of its record. In the second place is the owner's fence while it runs, LEFT or ENDED when nobody runs it, and
CANCELLED when nobody may. A script without the flag `allow-oom` is refused as a whole when Redis is full.
"""

import hashlib
from dataclasses import dataclass, field
from enum import Enum

from engine.journal.encoding import VERSION


class Verb(bytes, Enum):
    """What is to be done with one stream."""

    OPEN = b"open"
    WRITE = b"write"
    LEAVE = b"left"
    END = b"ended"
    DROP = b"drop"


# Where pods are told who has lost a stream: "FENCE taken", "FENCE cancelled".
CHANNEL = "tailrace:losses"


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


# KEYS: for each operation its stream. ARGV: how many ms a stream lives that somebody runs, and one that nobody runs;
# the operations, two lines each: the verb, how many elements the list must have and the owner's fence, then a piece,
# which may be empty. They are one argument because redis-py takes 0.5 us for each.
# Returns, for each operation that was refused, its number and the reason.
# The number of elements is looked at because a replica that was promoted, or a server that was restarted, may have lost
# the last writes, and what comes after a gap must not be continued.
WRITE = Script(
    rf"""#!lua
local refused = {{}}
local i = 0
for verb, length, fence, piece in string.gmatch(ARGV[3], '(%a+) (%d+) ([^\n]+)\n([^\n]*)\n') do
  i = i + 1
  local key = KEYS[i]
  local holder = verb ~= 'open' and redis.call('LINDEX', key, 1)
  local reason
  if verb == 'open' then
    redis.call('DEL', key)
    redis.call('RPUSH', key, {VERSION}, fence, piece)
    redis.call('PEXPIRE', key, ARGV[1])
  elseif not holder then
    reason = 'missing'
  elseif holder ~= fence then
    reason = holder == 'cancelled' and 'cancelled' or 'taken'
  elseif verb == 'drop' then
    redis.call('DEL', key)
  elseif redis.call('LLEN', key) ~= tonumber(length) then
    redis.call('DEL', key)
    reason = 'missing'
  else
    if piece ~= '' then redis.call('RPUSH', key, piece) end
    if verb ~= 'write' then redis.call('LSET', key, 1, verb) end
    redis.call('PEXPIRE', key, ARGV[verb == 'write' and 1 or 2])
  end
  if reason then
    refused[#refused + 1] = i
    refused[#refused + 1] = reason
  end
end
return refused
"""
)

# KEYS: the stream. ARGV: the fence of the new owner, "" only to look; how many ms it lives then.
# Returns the record as one JSON array, who had it, and how many elements the list has; nothing when it is unknown.
READ = Script(
    f"""#!lua flags=allow-oom
local version, holder = unpack(redis.call('LRANGE', KEYS[1], 0, 1))
if version ~= '{VERSION}' or holder == 'cancelled' then return false end
local document = '[' .. table.concat(redis.call('LRANGE', KEYS[1], 2, -1), ',') .. ']'
if ARGV[1] ~= '' and holder ~= 'ended' then
  redis.call('LSET', KEYS[1], 1, ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  if holder ~= 'left' then redis.call('PUBLISH', '{CHANNEL}', holder .. ' taken') end
end
return {{document, holder, redis.call('LLEN', KEYS[1])}}
"""
)

# KEYS: the stream. ARGV: how many ms it is remembered that it was cancelled, so that its owner's writes are refused for
# that reason. Returns who had it; nothing when it is unknown.
CANCEL = Script(
    f"""#!lua flags=allow-oom
local version, holder = unpack(redis.call('LRANGE', KEYS[1], 0, 1))
if version ~= '{VERSION}' or holder == 'cancelled' then return false end
redis.call('DEL', KEYS[1])
if holder ~= 'left' and holder ~= 'ended' then
  redis.call('RPUSH', KEYS[1], version, 'cancelled')
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  redis.call('PUBLISH', '{CHANNEL}', holder .. ' cancelled')
end
return holder
"""
)

# Whether batches will be taken: a full Redis refuses this, as do a replica, a cluster (the keys are in two slots) and a
# version that does not know `#!lua`. ARGV: how many ms the keys live.
PROBE_KEYS = (b"tailrace:probe:1", b"tailrace:probe:2")
PROBE = Script(
    """#!lua
for _, key in ipairs(KEYS) do redis.call('SET', key, '', 'PX', ARGV[1]) end
"""
)
