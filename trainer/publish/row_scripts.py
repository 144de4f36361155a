"""Fenced Lua scripts that write rows and unversioned values to Redis, each in one bucket.

A row's value holds the slots of at most two versions, the newer first (store.layout). A version that is
pushed again replaces its slot, and slots of pushes that were cut off and never flipped. Every script begins
with the fence (trainer.publish.fence): its first key is the bucket's epoch, its first argument the trainer's.
"""

from livectr.trainer.publish.fence_scripts import FENCE

WRITE_ROWS = (
    FENCE
    + """
-- ARGV: epoch, version and cut-off versions (8 bytes each), slot bytes, one new slot per key. Keeps the
-- newest slot of another version. Of 8 bytes the last says whether a slot erases.
local replaced, slot = {}, tonumber(ARGV[3])
for at = 1, #ARGV[2], 8 do replaced[string.sub(ARGV[2], at, at + 6)] = true end
local old, writes = redis.call('MGET', unpack(KEYS, 2)), {}
for i = 1, #KEYS - 1 do
  local value, before = ARGV[3 + i], old[i]
  if before then
    local from = 0
    if replaced[string.sub(before, 1, 7)] then from = slot end
    value = value .. string.sub(before, from + 1, from + slot)
  end
  writes[2 * i - 1], writes[2 * i] = KEYS[1 + i], value
end
redis.call('MSET', unpack(writes))
return 'OK'
"""
)

ERASE_ROWS = (
    FENCE
    + """
-- ARGV: epoch, versions as of WRITE_ROWS, slot bytes, an erased row's slot. A row that no version holds is
-- removed.
local replaced, slot, none = {}, tonumber(ARGV[3]), ARGV[4]
for at = 1, #ARGV[2], 8 do replaced[string.sub(ARGV[2], at, at + 6)] = true end
local old = redis.call('MGET', unpack(KEYS, 2))
for i = 1, #KEYS - 1 do
  local before = old[i]
  if before then
    local from = 0
    if replaced[string.sub(before, 1, 7)] then from = slot end
    local kept = string.sub(before, from + 1, from + slot)
    if kept == '' then
      redis.call('UNLINK', KEYS[1 + i])
    else
      redis.call('SET', KEYS[1 + i], none .. kept)
    end
  end
end
return 'OK'
"""
)

REMOVE_ERASED = (
    FENCE
    + """
-- ARGV: epoch, version. Removes the rows that are missing from that version on; a row that came back stays.
for i = 2, #KEYS do
  local head = redis.call('GETRANGE', KEYS[i], 0, 7)
  if #head == 8 and string.byte(head, 8) >= 128 then
    local at = 0
    for byte = 7, 1, -1 do at = at * 256 + string.byte(head, byte) end
    if at <= tonumber(ARGV[2]) then redis.call('UNLINK', KEYS[i]) end
  end
end
return 'OK'
"""
)

RAISE_FLOOR = (
    FENCE
    + """
local floor = tonumber(redis.call('GET', KEYS[2]) or 0)
if floor < tonumber(ARGV[2]) then redis.call('SET', KEYS[2], ARGV[2]) end
return 'OK'
"""
)

WRITE_VALUES = (
    FENCE
    + """
-- ARGV: epoch, one value per key
local writes = {}
for i = 1, #KEYS - 1 do writes[2 * i - 1], writes[2 * i] = KEYS[1 + i], ARGV[1 + i] end
redis.call('MSET', unpack(writes))
return 'OK'
"""
)

UNLINK = FENCE + "redis.call('UNLINK', unpack(KEYS, 2)) return 'OK'"
