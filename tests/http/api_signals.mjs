// api_signals.mjs: telling a run something.
import { check, event, id, same, test, until } from './harness.mjs'
import { acme, events, held, other, put, quick, run, start, step } from './world.mjs'

const { operator, viewer } = acme
const tell = (runId, verb, body, headers) => operator.must(202, 'POST', `/v1/runs/${runId}/${verb}`, body, headers)
const is = (runId, status) => until(`${runId} is ${status}`, async () => (await run(runId)).status === status)
const types = async (runId) => (await events(runId)).map((e) => e.eventType)
const waits = (runId, stepId) => until(`${stepId} runs`, async () => (await step(runId, stepId))?.state === 'RUNNING')

test('cancel: it ends, with the reason in the event', async () => {
  const runId = await start(held)
  const answer = await tell(runId, 'cancel', { reason: 'not today' })
  same([answer.runId, answer.signal], [runId, 'CANCEL'])
  await is(runId, 'CANCELLED')
  same((await events(runId)).find((e) => e.eventType === 'RunCancelled').payload.reason, 'not today')
})
test('cancel: without a body', async () => {
  const runId = await start(held)
  await tell(runId, 'cancel')
  await is(runId, 'CANCELLED')
  await tell(runId, 'cancel') // again: it is done
  await operator.refused(409, 'RUN_FINISHED', 'POST', `/v1/runs/${runId}/pause`)
})
test('pause and resume', async () => {
  const runId = await start(held)
  await waits(runId, 'hold')
  await tell(runId, 'pause')
  await is(runId, 'PAUSED')
  await operator.refused(409, 'SIGNAL_NOT_APPLICABLE', 'POST', `/v1/runs/${runId}/pause`)
  await tell(runId, 'resume')
  await is(runId, 'RUNNING')
  await operator.refused(409, 'SIGNAL_NOT_APPLICABLE', 'POST', `/v1/runs/${runId}/resume`)
  const list = await types(runId)
  check(list.indexOf('RunPaused') >= 0 && list.indexOf('RunPaused') < list.indexOf('RunResumed'), list.join())
})
test('approve and reject a step', async () => {
  const gate = await put([{ stepId: 'gate', type: 'approval' }])
  const yes = await start(gate)
  await waits(yes, 'gate')
  await tell(yes, 'approve', { stepId: 'gate', payload: { ticket: 7 }, reason: 'looks good' })
  await is(yes, 'COMPLETED')
  const { output } = await step(yes, 'gate')
  same([output.decision, output.payload.ticket], ['approved', 7])
  check(output.by.startsWith(`key:${acme.ids.operator}@`), output.by)
  const no = await start(gate)
  await waits(no, 'gate')
  await tell(no, 'reject', { stepId: 'gate' })
  await is(no, 'FAILED')
  same((await step(no, 'gate')).code, 'APPROVAL_REJECTED')
})
test('reject a run that waits for its approval', async () => {
  const runId = await start(quick, { approval: true })
  await tell(runId, 'reject')
  await is(runId, 'CANCELLED')
})
test('retry a failed step before its time', async () => {
  const ref = await put([{ stepId: 'a', type: 'exec', command: 'test -e there || { touch there; false; }', retry: { maxAttempts: 2, initialMs: 600000, maxMs: 600000 } }])
  const runId = await start(ref)
  await until('it failed', async () => (await step(runId, 'a'))?.state === 'FAILED')
  await operator.refused(404, 'STEP_NOT_FOUND', 'POST', `/v1/runs/${runId}/retry`, { stepId: 'nope' })
  await operator.refused(400, 'FIELD_MISSING', 'POST', `/v1/runs/${runId}/retry`, {}, [], '/stepId')
  await tell(runId, 'retry', { stepId: 'a' })
  await is(runId, 'COMPLETED')
  same((await step(runId, 'a')).logicalAttemptId, 2)
})
test('a named signal with a payload', async () => {
  const runId = await start(held)
  await waits(runId, 'hold')
  const answer = await tell(runId, 'signals', { signal: 'go', signalId: 's-1', payload: { count: 3 } })
  same(answer, { runId, signal: 'go', signalId: 's-1' })
  await is(runId, 'COMPLETED')
  same((await step(runId, 'hold')).output, { count: 3 })
})
test('the same signalId again has no second effect', async () => {
  const ref = await put([{ stepId: 'a', type: 'wait', signal: 'go' }, { stepId: 'b', type: 'wait', signal: 'go', dependsOn: ['a'] }])
  const runId = await start(ref)
  await waits(runId, 'a')
  for (let i = 0; i < 3; i++) await tell(runId, 'signals', { signal: 'go', signalId: 'only-once', payload: { n: i } })
  await waits(runId, 'b')
  same((await step(runId, 'a')).output, { n: 0 })
  same((await events(runId)).filter((e) => e.eventType === 'StepCompleted').length, 1)
  await tell(runId, 'signals', { signal: 'go', signalId: 'twice', payload: { n: 9 } })
  await is(runId, 'COMPLETED')
  same((await step(runId, 'b')).output, { n: 9 })
})
test('an Idempotency-Key makes a repeated request one signal', async () => {
  const ref = await put([{ stepId: 'a', type: 'wait', signal: 'go' }, { stepId: 'b', type: 'wait', signal: 'go', dependsOn: ['a'] }])
  const runId = await start(ref)
  await waits(runId, 'a')
  const key = [['Idempotency-Key', id('k')]]
  const first = await operator.post(`/v1/runs/${runId}/signals`, { signal: 'go' }, key)
  const second = await operator.post(`/v1/runs/${runId}/signals`, { signal: 'go' }, key)
  check(second.body.equals(first.body), `${first.body} ${second.body}`)
  same([first.status, second.status, second.headers['idempotent-replayed']], [202, 202, 'true'])
  await waits(runId, 'b')
  same((await events(runId)).filter((e) => e.eventType === 'StepCompleted').length, 1)
})
test('signals that cannot be', async () => {
  const runId = await start(held)
  await operator.refused(400, 'SIGNAL_UNKNOWN', 'POST', `/v1/runs/${runId}/signals`, { signal: 'nope' })
  await operator.refused(400, 'FIELD_MISSING', 'POST', `/v1/runs/${runId}/signals`, {}, [], '/signal')
  await operator.refused(400, 'FIELD_UNKNOWN', 'POST', `/v1/runs/${runId}/cancel`, { why: 'x' }, [], '/why')
  await operator.refused(409, 'SIGNAL_NOT_APPLICABLE', 'POST', `/v1/runs/${runId}/approve`)
  for (const verb of ['cancel', 'pause', 'resume', 'approve', 'reject']) await operator.refused(404, 'RUN_NOT_FOUND', 'POST', `/v1/runs/nobody/${verb}`)
  await operator.refused(404, 'RUN_NOT_FOUND', 'POST', '/v1/runs/nobody/signals', { signal: 'go' })
})
test('signals to a finished run', async () => {
  const runId = await start(quick)
  await is(runId, 'COMPLETED')
  const before = await types(runId)
  for (const verb of ['pause', 'resume', 'approve']) await operator.refused(409, 'RUN_FINISHED', 'POST', `/v1/runs/${runId}/${verb}`)
  await operator.refused(409, 'RUN_FINISHED', 'POST', `/v1/runs/${runId}/signals`, { signal: 'go' })
  same(await types(runId), before)
})
test('signals to a run that nobody here carries out', async () => {
  const runId = id('elsewhere')
  await acme.producer.must(201, 'POST', `/v1/runs/${runId}/events`, event(acme.name, runId, 'RunStarted'))
  const answer = await operator.post(`/v1/runs/${runId}/cancel`)
  same([answer.status, answer.json.code], [409, 'RUN_NOT_MANAGED'])
  same((await viewer.must(200, 'GET', `/v1/runs/${runId}`)).runSeq, 1)
})

// ---- by reference ----

const ofRef = (verb, engineRunRef, more = {}) => (verb === 'status' ? viewer : operator).post(`/v1/run-refs/${verb}`, { engineRunRef, ...(verb === 'signals' ? { signal: 'go' } : {}), ...more })
const OPERATIONS = ['status', 'signals', 'cancel']

// WE-2.1.1-5: the reference that the start answered is all that status, signal and cancel need.
test('status, signal and cancel take the reference of a start', async () => {
  const [told, ended] = [id('ref'), id('ref')]
  const refs = []
  for (const runId of [told, ended]) refs.push((await operator.must(201, 'POST', '/v1/runs', { planRef: held, context: { runId } })).engineRunRef)
  await waits(told, 'hold')
  const status = await ofRef('status', refs[0])
  same([status.status, status.json.runId, status.json.status, status.json.engineRunRef], [200, told, 'RUNNING', refs[0]])
  const signal = await ofRef('signals', refs[0], { signalId: 's-1', payload: { count: 3 } })
  same([signal.status, signal.json], [202, { runId: told, signal: 'go', signalId: 's-1' }])
  await is(told, 'COMPLETED')
  same((await step(told, 'hold')).output, { count: 3 })
  const key = [['Idempotency-Key', id('k')]]
  for (const replayed of [undefined, 'true']) {
    const cancel = await operator.post('/v1/run-refs/cancel', { engineRunRef: refs[1], reason: 'not today' }, key)
    same([cancel.status, cancel.json.runId, cancel.json.signal, cancel.headers['idempotent-replayed']], [202, ended, 'CANCEL', replayed])
  }
  await is(ended, 'CANCELLED')
  same((await events(ended)).find((e) => e.eventType === 'RunCancelled').payload.reason, 'not today')
})
// WE-2.1.1-3, WE-2.1.1-4, WE-2.1.1-5: without namespace, conductorUrl or runId each of the three operations refuses it, with the place; the run is as it was.
test('a reference without what its provider needs is refused by every operation', async () => {
  const runId = await start(held)
  await waits(runId, 'hold')
  const before = await types(runId)
  const bad = [
    [{ provider: 'temporal', workflowId: runId, runId }, '/engineRunRef/namespace'],
    [{ provider: 'conductor', workflowId: runId, runId }, '/engineRunRef/conductorUrl'],
    [{ provider: 'local', workflowId: runId }, '/engineRunRef/runId'],
    [{ provider: 'temporal', namespace: 'n', workflowId: runId }, '/engineRunRef/runId'],
    [{ provider: 'conductor', workflowId: runId, conductorUrl: 'http://c' }, '/engineRunRef/runId'],
    [{ provider: 'local', workflowId: runId, runId, namespace: 'n' }, '/engineRunRef/namespace'],
    [{ provider: 'nomad', workflowId: runId, runId }, '/engineRunRef/provider'],
    [runId, '/engineRunRef']
  ]
  for (const verb of OPERATIONS) {
    for (const [ref, where] of bad) {
      const answer = await ofRef(verb, ref)
      same([verb, answer.status, answer.json.code, answer.json.errors[0].pointer], [verb, 400, 'RUN_REF_INVALID', where])
    }
    const none = await (verb === 'status' ? viewer : operator).post(`/v1/run-refs/${verb}`, verb === 'signals' ? { signal: 'go' } : {})
    same([none.status, none.json.code, none.json.errors[0].pointer], [400, 'FIELD_MISSING', '/engineRunRef'])
    const mismatch = await ofRef(verb, { provider: 'temporal', namespace: 'n', workflowId: runId, runId })
    same([verb, mismatch.status, mismatch.json.code], [verb, 409, 'RUN_REF_MISMATCH'])
    const nobody = await ofRef(verb, { provider: 'local', workflowId: 'nobody', runId: 'nobody' })
    same([nobody.status, nobody.json.code], [404, 'RUN_NOT_FOUND'])
  }
  same(await types(runId), before)
})
test('signals of another tenant find nothing', async () => {
  const runId = await start(held)
  const before = await types(runId)
  await other.operator.refused(404, 'RUN_NOT_FOUND', 'POST', `/v1/runs/${runId}/cancel`)
  await other.operator.refused(404, 'RUN_NOT_FOUND', 'POST', `/v1/runs/${runId}/signals`, { signal: 'go' })
  const engineRunRef = { provider: 'local', workflowId: runId, runId }
  await other.operator.refused(404, 'RUN_NOT_FOUND', 'POST', '/v1/run-refs/cancel', { engineRunRef })
  await other.operator.refused(404, 'RUN_NOT_FOUND', 'POST', '/v1/run-refs/signals', { engineRunRef, signal: 'go' })
  await other.viewer.refused(404, 'RUN_NOT_FOUND', 'POST', '/v1/run-refs/status', { engineRunRef })
  same(await types(runId), before)
})
