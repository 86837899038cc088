// api_repeat.mjs: requests that are sent twice with one Idempotency-Key, and what is written down of those that change nothing.
import { Connection, requestBytes } from './client.mjs'
import { check, id, options, pause, same, test, until } from './harness.mjs'
import { acme, events, held, put, quick, root, run, start, step } from './world.mjs'

const { worker, operator, viewer, admin } = acme
const keyed = (key = id('k')) => [['Idempotency-Key', key]]
const replayed = (answer) => answer.headers['idempotent-replayed'] === 'true'
const over = (runId, status = 'COMPLETED') => until(`${runId} is ${status}`, async () => (await run(runId)).status === status)
const poll = (queue, more, headers, by = worker) => by.send('POST', '/v1/tasks/poll', { queue, worker: 'w', waitMs: 5000, ...more }, headers)
const tokens = (answer) => answer.json.items.map((t) => t.task)
const audits = async (action, runId, by = admin) => (await by.must(200, 'GET', '/v1/audit?limit=200')).items.filter((a) => a.action === action && a.target === runId)

async function queueOf(n = 1, more = {}) {
  const queue = id('queue')
  const ref = await put(Array.from({ length: n }, (_, i) => ({ stepId: `s${i}`, type: 'task', queue, input: { n: i }, ...more })))
  return { queue, runId: await start(ref) }
}
// All n of them, with one key.
async function take(queue, n, headers) {
  const first = await poll(queue, { max: n, leaseMs: 60000 }, headers)
  check(first.status === 200 && first.json.items.length >= 1, first.body.toString())
  return first
}
// The same twice: the first answer, byte for byte.
async function twice(by, target, body, headers = keyed()) {
  const first = await by.send('POST', target, body, headers)
  check(first.status < 300 && !replayed(first), `${first.status} ${first.body}`)
  const second = await by.send('POST', target, body, headers)
  same([second.status, replayed(second)], [first.status, true])
  same(second.body.toString(), first.body.toString())
  return first
}
const reused = (by, target, body, headers) => by.refused(422, 'IDEMPOTENCY_KEY_REUSED', 'POST', target, body, headers, '#Idempotency-Key')

test('repeat poll: the same tasks, while they are held; no others', async () => {
  const { queue } = await queueOf(3)
  const headers = keyed()
  const first = await take(queue, 1, headers)
  const again = await poll(queue, { max: 1, leaseMs: 60000 }, headers)
  same([replayed(first), replayed(again), tokens(again)], [false, true, tokens(first)])
  same(again.json.items, first.json.items)
  await reused(worker, '/v1/tasks/poll', { queue, worker: 'w', waitMs: 5000, max: 2, leaseMs: 60000 }, headers)
  const next = await take(queue, 1, keyed()) // another key: another task
  check(tokens(next)[0] !== tokens(first)[0], 'the same task')
  await worker.must(200, 'POST', '/v1/tasks/complete', { task: tokens(first)[0] })
  const late = await poll(queue, { max: 1, leaseMs: 60000 }, headers)
  same([late.status, replayed(late), late.json.items], [200, true, []])
})
test('repeat poll: of a batch those that are left', async () => {
  const { queue } = await queueOf(4)
  const headers = keyed()
  const first = await take(queue, 4, headers)
  await worker.must(200, 'POST', '/v1/tasks/complete', { task: tokens(first)[0] })
  const again = await poll(queue, { max: 4, leaseMs: 60000 }, headers)
  same(tokens(again).sort(), tokens(first).slice(1).sort())
})
test('repeat poll: a lease that ran out is not given back', async () => {
  const { queue } = await queueOf()
  const headers = keyed()
  const first = await poll(queue, { leaseMs: 200 }, headers)
  same(tokens(first).length, 1)
  await pause(400)
  same(tokens(await poll(queue, { leaseMs: 200 }, headers)), [])
  same((await poll(queue, {}, keyed())).json.items[0].lease, 2)
})
// Whenever the connection ends: the repetition has what the first time took, and the rest is free.
test('repeat poll: the first was cut off, perhaps while its lease was being committed', async () => {
  for (let i = 0; i < 30; i++) {
    const { queue } = await queueOf(2)
    const headers = keyed()
    const body = { queue, worker: 'w', waitMs: 5000, max: 1, leaseMs: 60000 }
    const cut = new Connection(options.url)
    await cut.open()
    cut.socket.write(requestBytes(options.url, acme.keys.worker, { method: 'POST', target: '/v1/tasks/poll', headers: [...headers, ['Content-Type', 'application/json']], body: JSON.stringify(body) }))
    await pause(i % 6)
    cut.close()
    const again = await until('the answer', async () => { const a = await worker.send('POST', '/v1/tasks/poll', body, headers); return a.status === 200 && a })
    same(tokens(again).length, 1)
    const rest = await poll(queue, { max: 2 })
    same(tokens(rest).length, 1, `tasks that are left in round ${i}`)
    check(tokens(rest)[0] !== tokens(again)[0], 'the same task')
  }
})
test('repeat poll: one that took nothing is not remembered; nor is it another caller\'s', async () => {
  const queue = id('queue')
  const headers = keyed()
  same((await poll(queue, { waitMs: 0 }, headers)).json.items, [])
  await start(await put([{ stepId: 'a', type: 'task', queue }]))
  const first = await until('the task', async () => { const a = await poll(queue, { waitMs: 0 }, headers); return a.json.items.length === 1 && a })
  same(replayed(first), false)
  const stranger = await poll(queue, { waitMs: 0 }, headers, admin)
  same([replayed(stranger), stranger.json.items], [false, []])
  same(tokens(await poll(queue, { waitMs: 0 }, headers)), tokens(first))
})
test('repeat complete: the first answer, also when the run is over', async () => {
  const { queue, runId } = await queueOf()
  const [task] = tokens(await take(queue, 1))
  const headers = keyed()
  const body = { task, output: { made: 1 } }
  await twice(worker, '/v1/tasks/complete', body, headers)
  await over(runId)
  const late = await worker.send('POST', '/v1/tasks/complete', body, headers)
  same([late.status, replayed(late), late.json], [200, true, {}])
  await worker.refused(409, 'LEASE_LOST', 'POST', '/v1/tasks/complete', body) // without the key it is too late
  await reused(worker, '/v1/tasks/complete', { task, output: { made: 2 } }, headers)
  await reused(worker, '/v1/tasks/fail', { task, code: 'NO' }, headers)
  same((await step(runId, 's0')).output, { made: 1 })
})
test('repeat complete: told before without a key, then with one', async () => {
  const { queue } = await queueOf(2)
  const [task] = tokens(await take(queue, 1))
  await worker.must(200, 'POST', '/v1/tasks/complete', { task })
  const headers = keyed()
  await twice(worker, '/v1/tasks/complete', { task }, headers)
  await reused(worker, '/v1/tasks/complete', { task, output: 1 }, headers)
})
test('repeat fail: the first answer, though the next attempt is under way', async () => {
  const { queue, runId } = await queueOf(1, { retry: { maxAttempts: 2, initialMs: 10 } })
  const [task] = tokens(await take(queue, 1))
  const headers = keyed()
  const body = { task, code: 'NO_PAPER', message: 'm' }
  await twice(worker, '/v1/tasks/fail', body, headers)
  const second = await take(queue, 1)
  same(second.json.items[0].attempt, 2)
  const late = await worker.send('POST', '/v1/tasks/fail', body, headers)
  same([late.status, replayed(late)], [200, true])
  await worker.must(200, 'POST', '/v1/tasks/complete', { task: tokens(second)[0] })
  await over(runId)
})
test('a refused result is not remembered', async () => {
  const { queue } = await queueOf()
  const [task] = tokens(await take(queue, 1))
  const headers = keyed()
  await worker.refused(400, 'TASK_TOKEN_INVALID', 'POST', '/v1/tasks/complete', { task: 'AAAA' }, headers)
  const answer = await worker.send('POST', '/v1/tasks/complete', { task }, headers)
  same([answer.status, replayed(answer)], [200, false])
})
test('repeat results: each line as it was, and the same tasks', async () => {
  const { queue, runId } = await queueOf(6, { onFailure: 'continue', retry: { maxAttempts: 2, initialMs: 10 } })
  const taken = tokens(await take(queue, 3, keyed()))
  while (taken.length < 3) taken.push(...tokens(await take(queue, 3 - taken.length, keyed())))
  const text = `${JSON.stringify({ task: taken[0], output: 1 })}\n\n{"task":"AAAA"}\n${JSON.stringify({ task: taken[1], error: { code: 'BROKEN' } })}\n`
  const target = `/v1/tasks/results?poll=${queue}&worker=w&max=2&leaseMs=60000&waitMs=5000`
  const headers = keyed()
  const first = await worker.lines(target, text, headers)
  same(first.lines.slice(0, 3).map((l) => l.ok ?? [l.line, l.error.code]), [true, [3, 'TASK_TOKEN_INVALID'], true])
  check(first.lines[3].items.length >= 1, JSON.stringify(first.lines[3]))
  await until('the next attempt', async () => (await viewer.must(200, 'GET', `/v1/runs/${runId}/steps`)).items.some((s) => s.logicalAttemptId === 2))
  const again = await worker.lines(target, text, headers) // without the key it would be LEASE_LOST now
  same([again.status, replayed(again)], [200, true])
  same(again.lines.slice(0, 3), first.lines.slice(0, 3))
  same(again.lines[3].items.map((t) => t.task).sort(), first.lines[3].items.map((t) => t.task).sort())
  const other = await worker.lines(target, `${text}\n`, headers)
  same([other.status, other.json.code], [422, 'IDEMPOTENCY_KEY_REUSED'])
  same((await worker.lines('/v1/tasks/results', text)).lines[2].error.code, 'LEASE_LOST')
  same((await events(runId)).filter((e) => e.eventType === 'StepCompleted').length, 1)
})
test('repeat results: a line that was told before is remembered like the others', async () => {
  const { queue, runId } = await queueOf(2)
  const [a] = tokens(await take(queue, 1))
  const [b] = tokens(await take(queue, 1))
  await worker.must(200, 'POST', '/v1/tasks/complete', { task: a })
  const text = [a, b, b].map((task) => `${JSON.stringify({ task })}\n`).join('')
  const headers = keyed()
  same((await worker.lines('/v1/tasks/results', text, headers)).lines, [{ ok: true }, { ok: true }, { ok: true }])
  await over(runId)
  const again = await worker.lines('/v1/tasks/results', text, headers)
  same([replayed(again), again.lines], [true, [{ ok: true }, { ok: true }, { ok: true }]])
  same((await worker.lines('/v1/tasks/results', text)).lines.map((l) => l.error?.code), ['LEASE_LOST', 'LEASE_LOST', 'LEASE_LOST'])
})
test('repeat heartbeat: it counts each time, and a lost lease is told', async () => {
  const { queue } = await queueOf()
  const [task] = tokens(await take(queue, 1))
  const headers = keyed()
  const first = await worker.send('POST', '/v1/tasks/heartbeat', { task, leaseMs: 300 }, headers)
  await pause(20)
  const again = await worker.send('POST', '/v1/tasks/heartbeat', { task, leaseMs: 300 }, headers)
  same([first.status, replayed(first), again.status, replayed(again)], [200, false, 200, true])
  check(again.json.leaseUntil > first.json.leaseUntil, `${again.json.leaseUntil} after ${first.json.leaseUntil}`)
  await reused(worker, '/v1/tasks/heartbeat', { task, leaseMs: 400 }, headers)
  await pause(400)
  const [next] = tokens(await take(queue, 1))
  await worker.refused(409, 'LEASE_LOST', 'POST', '/v1/tasks/heartbeat', { task, leaseMs: 300 }, headers)
  await worker.must(200, 'POST', '/v1/tasks/complete', { task: next })
})
test('repeat validate, wake and verify', async () => {
  const headers = keyed()
  const good = { schemaVersion: 'v1.3', metadata: { planId: 'p', planVersion: '1' }, steps: [{ stepId: 'a', type: 'noop' }] }
  await twice(viewer, '/v1/plans/validate', good, headers)
  await reused(viewer, '/v1/plans/validate', { ...good, steps: [] }, headers)
  const runId = await start(held)
  const wake = keyed()
  await twice(operator, `/v1/runs/${runId}/wake`, undefined, wake)
  await reused(operator, `/v1/runs/${await start(held)}/wake`, undefined, wake)
  same((await audits('run.wake', runId)).length, 2)
  const verify = keyed()
  await twice(root, '/v1/admin/verify', { state: false }, verify)
  await reused(root, '/v1/admin/verify', { state: true }, verify)
})
test('repeat checkpoint: one event, and the same answer', async () => {
  const runId = await start(held)
  const headers = keyed()
  const { json } = await twice(operator, `/v1/runs/${runId}/checkpoints`, undefined, headers)
  const made = (await events(runId)).filter((e) => e.eventType === 'RunCheckpointCreated')
  same(made.map((e) => e.eventId), [json.eventId])
  same((await audits('run.checkpoint', runId)).length, 1)
  await operator.must(201, 'POST', `/v1/runs/${runId}/checkpoints`, undefined, keyed())
  same((await events(runId)).filter((e) => e.eventType === 'RunCheckpointCreated').length, 2)
})
test('a signal without effect is written down, once for each request', async () => {
  const runId = await start(held)
  for (let i = 0; i < 3; i++) await operator.must(202, 'POST', `/v1/runs/${runId}/pause`, { signalId: 'one', reason: `try ${i}` })
  same((await audits('run.pause', runId)).map((a) => [a.reason, a.outcome]), [['try 2', 'done'], ['try 1', 'done'], ['try 0', 'done']])
  await operator.must(202, 'POST', `/v1/runs/${runId}/cancel`, { reason: 'first' })
  await over(runId, 'CANCELLED')
  const late = await operator.post(`/v1/runs/${runId}/cancel`, { reason: 'late' }, keyed())
  same(late.status, 202)
  const [record, ...rest] = await audits('run.cancel', runId)
  same([record.reason, record.requestId, record.runId, rest.length], ['late', late.headers['x-request-id'], runId, 1])
  await operator.refused(409, 'RUN_FINISHED', 'POST', `/v1/runs/${runId}/resume`)
  same(await audits('run.resume', runId), [])
})
test('backup: repeated with its key it is the same one', async () => {
  const file = `${id('b')}.db`
  const headers = keyed()
  const first = await root.post('/v1/admin/backup', { file }, headers)
  if (first.status === 422) return same(first.json.code, 'BACKUP_UNSUPPORTED') // PostgreSQL has tools of its own
  same([first.status, first.json.file], [201, file])
  const again = await root.post('/v1/admin/backup', { file }, headers)
  same([again.status, replayed(again), again.body.toString()], [201, true, first.body.toString()])
  same((await audits('admin.backup', file, root)).length, 1)
  await reused(root, '/v1/admin/backup', { file: `${id('b')}.db` }, headers)
  await root.refused(409, 'FILE_EXISTS', 'POST', '/v1/admin/backup', { file }, keyed())
  await root.refused(409, 'FILE_EXISTS', 'POST', '/v1/admin/backup', { file })
})
test('archive: finished runs move, no answer changes, and it is written down', async () => {
  const open = await start(held)
  const done = []
  for (let i = 0; i < 5; i++) done.push(await start(quick))
  for (const runId of done) await over(runId)
  const before = await events(done[0])
  const headers = keyed()
  const one = await twice(root, '/v1/admin/archive', { runId: done[0], reason: 'tidy' }, headers)
  same([one.json.runs, one.json.more], [1, false])
  check(one.json.events >= before.length, one.body.toString())
  same((await audits('admin.archive', done[0], root)).map((a) => [a.reason, a.outcome, a.tenantId]), [['tidy', 'done', '*']])
  await reused(root, '/v1/admin/archive', { runId: done[1] }, headers)
  same(await events(done[0]), before)
  same((await root.must(200, 'POST', '/v1/admin/archive', { before: '2020-01-01T00:00:00Z' })).runs, 0)
  same((await root.must(200, 'POST', '/v1/admin/archive', { before: '1970-01-01T00:00:00Z' })).runs, 0)
  same((await root.must(200, 'POST', '/v1/admin/archive', { limit: 2 })).runs, 2)
  const rest = await root.must(200, 'POST', '/v1/admin/archive') // all
  check(rest.runs >= 2, JSON.stringify(rest))
  same((await root.must(200, 'POST', '/v1/admin/archive', {})).events, 0)
  await root.refused(409, 'RUN_NOT_FINISHED', 'POST', '/v1/admin/archive', { runId: open })
  await root.refused(404, 'RUN_NOT_FOUND', 'POST', '/v1/admin/archive', { runId: 'nobody' })
  await root.refused(400, 'TIME_NOT_RFC3339_UTC', 'POST', '/v1/admin/archive', { before: 'yesterday' }, [], '/before')
  await root.refused(400, 'FIELD_UNKNOWN', 'POST', '/v1/admin/archive', { until: '2020-01-01T00:00:00Z' }, [], '/until')
  await admin.refused(403, 'FORBIDDEN', 'POST', '/v1/admin/archive', {})
  same((await root.must(200, 'POST', '/v1/admin/verify', { state: true })).damaged, false)
  await operator.must(202, 'POST', `/v1/runs/${open}/signals`, { signal: 'go' })
  await over(open)
})
