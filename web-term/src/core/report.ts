// Answers that a terminal gives to a program's queries, which look like typed input.

const ANSWERS = /^(?:␛\[[?>=]?[\d;]*(?:[cRnxy]|\$y)|␛\[[IO]|␛P[^␛]*␛\\|␛\][^␇␛]*(?:␇|␛\\))+$/;

/**
 * Whether bytes are nothing but such answers. While old output is replayed they answer queries of
 * long ago and would be typed into the shell.
 */
export function isReport(bytes: Uint8Array): boolean {
  if (bytes[0] !== 0x1b) return false;
  let text = "";
  for (const byte of bytes) {
    text += byte === 0x1b ? "␛" : byte === 0x07 ? "␇" : String.fromCharCode(byte);
  }
  return ANSWERS.test(text);
}
